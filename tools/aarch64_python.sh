#!/bin/sh
# Makes FOLDER/python, an interpreter for aarch64 under qemu-user with all that an agent needs, to try an agent as on a board.
# Needs apt-get, dpkg, a package index and root (debootstrap); nothing is installed on this machine.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
checkout=$(cd "$(dirname "$0")/.." && pwd)
cd "$folder"

apt-get download qemu-user-static debootstrap
for package in qemu-user-static debootstrap; do dpkg -x "$package"_*.deb tools; done
DEBOOTSTRAP_DIR="$folder/tools/usr/share/debootstrap" tools/usr/sbin/debootstrap \
    --arch=arm64 --foreign --variant=minbase --include=python3 bookworm root http://deb.debian.org/debian
for package in root/var/cache/apt/archives/*.deb; do dpkg -x "$package" root; done

python3 - "$checkout/pyproject.toml" > requirements.txt <<'PYTHON'
import re, sys
section = re.search(r"^dependencies = \[(.*?)^\]", open(sys.argv[1]).read(), re.DOTALL | re.MULTILINE)
print("\n".join(each for each in re.findall(r'"([^"]+)"', section[1]) if ";" not in each))
PYTHON
python3 -m pip install --quiet --only-binary=:all: --implementation=cp --python-version=3.11 --target site \
    --platform=manylinux2014_aarch64 --platform=manylinux_2_27_aarch64 --platform=manylinux_2_28_aarch64 \
    -r requirements.txt

cat > python <<SHELL
#!/bin/sh
export PYTHONHOME=$folder/root/usr PYTHONPATH=$folder/site:$checkout:$checkout/agents:$checkout/broker
export PYTHONDONTWRITEBYTECODE=1
exec $folder/tools/usr/bin/qemu-aarch64-static -L $folder/root -0 $folder/python $folder/root/usr/bin/python3.11 "\$@"
SHELL
chmod +x python
./python -c "import platform; print(platform.machine())"
