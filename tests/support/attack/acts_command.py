"""The acts that send commands to a disk past the block layer: NVMe, SCSI and ATA. See acts.py for the variables."""

from __future__ import annotations

from tests.support.attack.acts import Act

NO_SUPPORT = "QEMU 7.2 has no such command"
TAKES_DOWN = "it takes the driver's own queues down when nothing guards"

NVME = (
    Act("nvme write", "head -c $LBA /dev/urandom > /run/block; nvme write $D -n $NSID -s 8 -c 0 -z $LBA -d /run/block", on="nvme"),
    Act("nvme write-zeroes", "nvme write-zeroes $D -n $NSID -s 8 -c 7", on="nvme"),
    Act("nvme write-uncor", "nvme write-uncor $D -n $NSID -s 8 -c 0", on="nvme"),
    Act("nvme dsm --ad", "nvme dsm $D -n $NSID --ad --slbs=8 --blocks=8", on="nvme"),
    Act("nvme copy", "nvme copy $D -n $NSID --sdlba=64 --slbs=8 --blocks=0", on="nvme"),
    Act("nvme io-passthru write", "nvme io-passthru $D -n $NSID --opcode=1 -w -l $LBA --cdw10=8 -i /dev/urandom", on="nvme"),
    Act("nvme resv-register", "nvme resv-register $D -n $NSID --nrkey=1 --rrega=0", on="nvme"),
    Act("nvme resv-acquire", "nvme resv-acquire $D -n $NSID --crkey=1 --rtype=1 --racqa=0", on="nvme"),
    Act("nvme resv-release", "nvme resv-release $D -n $NSID --crkey=1 --rtype=1 --rrela=0", on="nvme"),
    Act("nvme set-feature", "nvme set-feature $CTL -n $NSID -f 6 -V 0", on="nvme"),
    Act("nvme format", "nvme format $D -n $NSID --ses=0 --force", on="nvme"),
    Act("nvme sanitize", "nvme sanitize $CTL -a 2", on="nvme"),
    Act("nvme fw-download", "head -c 4096 /dev/urandom > /run/firmware; nvme fw-download $CTL -f /run/firmware", on="nvme"),
    Act("nvme fw-commit", "nvme fw-commit $CTL -s 1 -a 1", on="nvme"),
    Act("nvme create-ns", "nvme create-ns $CTL --nsze=2048 --ncap=2048 --flbas=0", on="nvme"),
    Act("nvme delete-ns", "nvme delete-ns $CTL -n $NSID", on="nvme"),
    Act("nvme attach-ns", "nvme attach-ns $CTL -n $NSID -c 0", on="nvme"),
    Act("nvme detach-ns", "nvme detach-ns $CTL -n $NSID -c 0", on="nvme"),
    Act("nvme security-send", "head -c 512 /dev/urandom > /run/block; nvme security-send $CTL -n $NSID -f /run/block -p 1 -s 1 -t 512", on="nvme"),
    Act("nvme admin-passthru (vendor)", "nvme admin-passthru $CTL -n $NSID --opcode=0xc1 -w -l 512 -i /dev/urandom", on="nvme"),
    Act("NVME_IOCTL_IO_CMD on the block node", "$A nvme-io $D 1 $NSID", on="nvme"),
    Act("NVME_IOCTL_IO64_CMD on the block node", "$A nvme-io64 $D 1 $NSID", on="nvme"),
    Act("NVME_IOCTL_SUBMIT_IO on the block node", "$A nvme-submit $D 1", on="nvme"),
    Act("NVME_IOCTL_IO_CMD on the generic node", "$A nvme-io $NG 8 $NSID", on="nvme"),
    Act("NVME_IOCTL_IO_CMD on the controller node", "$A nvme-io $CTL 8 $NSID", on="nvme", control="",
        why="the driver refuses it on controllers with several namespaces"),
    Act("NVME_IOCTL_ADMIN_CMD format on the block node", "$A nvme-admin $D 0x80 $NSID", on="nvme"),
    Act("io_uring command write on the generic node", "$A nvme-uring $NG 1 $NSID $LBA", on="nvme"),
    Act("io_uring command write-zeroes on the generic node", "$A nvme-uring $NG 8 $NSID 0", on="nvme"),
    Act("io_uring command format on the controller node", "$A nvme-uring-admin $CTL 0x80 $NSID", on="nvme"),
    Act("every I/O opcode by ioctl", "$A nvme-sweep $D io $NSID 0 255", on="nvme", seconds=120),
    Act("every I/O opcode by io_uring", "$A nvme-sweep $NG uring-io $NSID 0 255", on="nvme", seconds=120),
    Act("500 random I/O commands", "/run/acts/fuzz /run/acts/random $D $NG $CTL", on="nvme", seconds=120, spoils=True),
    Act("every admin opcode by ioctl", "$A nvme-sweep $CTL admin $NSID 0 255", on="nvme", control="", why=TAKES_DOWN,
        seconds=120, spoils=True),
    Act("every admin opcode by io_uring", "$A nvme-sweep $CTL uring-admin $NSID 0 255", on="nvme", control="",
        why=TAKES_DOWN, seconds=120, spoils=True),
)

SCSI = (
    Act("SG_IO write(10) on the block node", "$A sg $D 2a000000010000000100 out 512", on="scsi", control="scsi"),
    Act("SG_IO write(10) on the sg node", "$A sg $SG 2a000000010000000100 out 512", on="scsi", control="scsi"),
    Act("write(10) on the bsg node", "$A bsg $BSG 2a000000010000000100 out 512", on="scsi", control="scsi"),
    Act("SG_IO write(16)", "$A sg $D 8a000000000000010000000000010000 out 512", on="scsi", control="scsi"),
    Act("SG_IO write same(10)", "$A sg $D 41000000010000000800 out 512", on="scsi", control="scsi"),
    Act("SG_IO ATA pass-through(16) write", "$A sg $D 850b0600000001008000000000403400 out 512", on="ata", control="sata"),
    Act("SG_IO mode select(10)", "$A sg $D 55100000000000000800 out 8", on="scsi", control="scsi"),
    Act("SG_IO vendor command", "$A sg $D c0000000000000000000 out 512", on="scsi", control="",
        why="QEMU turns it down before it is traced"),
    Act("every SCSI opcode", "$A sg-sweep $D", on="scsi", control="scsi", seconds=120, spoils=True),
    Act("sg_dd", "sg_dd if=/dev/zero of=$SG bs=512 count=1 seek=256", on="scsi", control="scsi"),
    Act("sg_write_same", "sg_write_same --lba=256 --num=8 --xferlen=512 $D", on="scsi", control="scsi"),
    Act("sg_unmap", "sg_unmap --lba=256 --num=8 --force $D", on="scsi", control="scsi"),
    Act("sg_write_buffer", "sg_write_buffer --mode=data --in=/dev/zero --length=64 $D", on="scsi", control="scsi"),
    Act("sg_sanitize", "sg_sanitize --block --early --quick $D", on="scsi", control="scsi"),
    Act("sg_format", "sg_format --format --early --quick --wait $D", on="scsi", control="scsi"),
    Act("sg_persist --register", "sg_persist --out --register --param-sark=1 $D", on="scsi", control="scsi"),
    Act("sg_reassign", "sg_reassign --address=256 $D", on="scsi", control="scsi"),
    Act("sdparm --clear=WCE", "sdparm --clear=WCE $D", on="scsi", control="scsi"),
    Act("cache_type in sysfs", "for f in $SYS/device/scsi_disk/*/cache_type; do echo 'write through' | tee $f; done", on="scsi", control="scsi"),
    Act("unload_heads in sysfs", "echo 100 | tee $SYS/device/unload_heads", on="ata", control="", why="QEMU's disk has no heads to unload"),
    Act("hdparm -W0", "hdparm -W0 $D", on="ata", control="sata"),
    Act("hdparm --write-sector", "hdparm --yes-i-know-what-i-am-doing --write-sector 256 $D", on="ata", control="sata"),
    Act("hdparm --make-bad-sector", "hdparm --yes-i-know-what-i-am-doing --make-bad-sector 300 $D", on="ata", control="sata"),
    Act("hdparm --trim-sector-ranges", "hdparm --please-destroy-my-drive --trim-sector-ranges 256:8 $D", on="ata", control="sata"),
    Act("hdparm --security-set-pass", "hdparm --user-master u --security-set-pass wall $D", on="ata", control="sata"),
    Act("hdparm --security-erase", "hdparm --user-master u --security-erase wall $D", on="ata", control="sata", seconds=30),
    Act("hdparm -N", "hdparm --yes-i-know-what-i-am-doing -N p1000 $D", on="ata", control="sata"),
    Act("hdparm --dco-restore", "hdparm --yes-i-know-what-i-am-doing --dco-restore $D", on="ata", control="sata"),
)

# The guard hooks functions by ftrace. Another user of ftrace on the same function changes how the kernel calls the hook.
# Not in the matrix: QEMU's emulation of several processors can lose a code change of the guest's kernel, which then
# panics ("Oops: int3"), so these run in a machine with one. The kernel waits long before it drops a trampoline.
HOOKED = "submit_bio_noacct nvme_setup_cmd blk_execute_rq blk_execute_rq_nowait bdev_open security_file_ioctl security_uring_cmd"
TRACEFS = "t=/sys/kernel/tracing; test -e $t/trace || mount -t tracefs tracefs $t || exit; "
WRITES = ("s=1; blockdev --setrw $D && s=0; dd if=/dev/urandom of=$T bs=4k count=1 seek=8 conv=nocreat,notrunc,fsync && s=0; "
          "case $D in /dev/nvme*) nvme write-zeroes $D -n $NSID -s 8 -c 7 && s=0;; "
          "/dev/sd*) $A sg $D 2a000000010000000100 out 512 && s=0;; esac; ")
TRACED = (
    Act("writes under the function tracer", f"{TRACEFS} echo {HOOKED} > $t/set_ftrace_filter; echo function > $t/current_tracer; "
        f"{WRITES} echo nop > $t/current_tracer; echo > $t/set_ftrace_filter; exit $s",
        seconds=180),
    Act("writes under kprobe events", f"{TRACEFS} for f in {HOOKED}; do echo \"p:wall_$f $f\" >> $t/kprobe_events; "
        "echo \"r:ward_$f $f\" >> $t/kprobe_events; done; echo 1 > $t/events/kprobes/enable; "
        f"{WRITES} echo 0 > $t/events/kprobes/enable; echo > $t/kprobe_events; exit $s",
        seconds=180),
)

# Ways to the hardware that need no disk; they run once, and the machine itself is their layout.
MACHINE = (
    Act("/dev/mem", "dd if=/dev/mem of=/dev/null bs=4096 count=1 skip=1024", on="machine", control="", why="reads only"),
    Act("/dev/port", "dd if=/dev/port of=/dev/null bs=1 count=1 skip=128", on="machine", control="", why="reads only"),
    Act("PCI BAR of an NVMe controller", "for f in /sys/class/nvme/nvme*/device/resource0; do $A map $f && exit; done; exit 1",
        on="machine", control="", why="maps only"),
    Act("iopl", "$A iopl -", on="machine", control="", why="writes nothing by itself"),
    Act("kexec_load", "$A kexec -", on="machine", control="", why="writes nothing by itself"),
    Act("a module from outside of the image", "for f in /usr/lib/modules/*/kernel/drivers/block/brd.ko*; do "
        "cp $f /run/module; done; $A module /run/module", on="machine", control="", why="writes nothing by itself"),
    Act("kernel.ftrace_enabled=0", "echo 0 | tee /proc/sys/kernel/ftrace_enabled", on="machine", control="", why="writes nothing by itself"),
    Act("hibernation", "echo disk | tee /sys/power/state", on="machine", control="", why="the image boots with nohibernate"),
)
