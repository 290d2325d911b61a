#!/bin/sh
# Makes a root file system from the /usr of a system, and runs systemd in it as the first process of a pid namespace. machine.py calls it in
# new mount, pid, network, host name, IPC and cgroup namespaces. Everything that is written goes to memory: the machine's own files,
# cgroups and kernel settings do not change.
# usage: boot.sh ROOT FILES SYSTEM   (FILES is a folder that is copied over the root; SYSTEM is the root of the system, / for this machine)
set -eu
root=$1 files=$2 system=${3%/}

mount -t tmpfs -o mode=755 tmpfs "$root"
cd "$root"
mkdir -p .changes .work dev etc/systemd/system home mnt old proc root run sys tmp usr var/log/journal var/tmp
chmod 1777 tmp var/tmp
mount -t overlay -o "lowerdir=$system/usr,upperdir=$root/.changes,workdir=$root/.work" overlay usr
for link in bin sbin lib lib32 lib64 libx32; do
    [ ! -L "$system/$link" ] || ln -s "$(readlink "$system/$link")" "$link"
done

# The units that a service needs, and none of the machine's other services.
units=$root/usr/lib/systemd/system
rm -rf "$units"
mkdir -p "$units/sockets.target.wants"
for unit in basic sysinit sockets timers paths slices local-fs local-fs-pre swap network umount shutdown final multi-user exit; do
    cp "$system/usr/lib/systemd/system/$unit.target" "$units/"
done
cp "$system"/usr/lib/systemd/system/systemd-exit.service "$units/"
for unit in systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket; do
    cp "$system/usr/lib/systemd/system/$unit" "$units/"
done
ln -s ../systemd-journald.socket ../systemd-journald-dev-log.socket "$units/sockets.target.wants/"

cp "$system/usr/lib/os-release" etc/os-release
cp "$system/etc/ld.so.cache" etc/
tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
cat >etc/passwd <<'END'
root:x:0:0:root:/root:/bin/sh
scraper:x:1001:1001::/:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
END
printf 'root:x:0:\nsystemd-journal:x:101:\nprometheus:x:1001:\nnogroup:x:65534:\n' >etc/group
printf 'passwd: files systemd\ngroup: files systemd\nhosts: files\n' >etc/nsswitch.conf
cp -a "$files/." .

mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
# A device that the unit does not list: every user may write to it.
mknod dev/unlisted c 1 11
chmod 0666 dev/unlisted

pivot_root . old
cd /
umount -l old
# systemd gives a service its credentials through a mount that has to propagate.
mount --make-rshared /
exec env -i container=judge PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /usr/lib/systemd/systemd --system --log-target=journal --show-status=0 --unit=multi-user.target
