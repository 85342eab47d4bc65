// SPDX-License-Identifier: GPL-2.0
/*
 * Which command only reads. Pure tables: what is on no list is refused. A command that changes the medium, the settings,
 * the firmware, the power state or the reservations of a device is not on a list.
 */
#include <linux/cdrom.h>
#include <linux/fd.h>
#include <linux/fs.h>
#include <linux/hdreg.h>
#include <linux/loop.h>
#include <linux/nvme.h>
#include <linux/nvme_ioctl.h>
#include <linux/blkpg.h>
#include <linux/blkzoned.h>
#include <scsi/scsi.h>
#include <scsi/scsi_ioctl.h>
#include <scsi/scsi_proto.h>
#include <scsi/sg.h>
#include <uapi/asm-generic/ioctls.h>
#include "guard.h"

/* NVM and ZNS command sets, the I/O queues. */
bool guard_nvme_io_reads(u8 opcode)
{
	switch (opcode) {
	case 0x02:	/* read */
	case 0x05:	/* compare */
	case 0x0c:	/* verify */
	case 0x0e:	/* reservation report */
	case 0x12:	/* I/O management receive */
	case 0x7a:	/* zone management receive */
		return true;
	}
	return false;
}

/* Admin commands that a program may send. Nothing of a controller is ever granted: these hold for every disk on it.
 * Directive receive (0x1a) is not among them: it can allocate streams. */
bool guard_nvme_user_admin_reads(u8 opcode)
{
	switch (opcode) {
	case 0x02:	/* get log page */
	case 0x06:	/* identify */
	case 0x0a:	/* get features */
	case 0x1e:	/* NVMe-MI receive */
	case 0x82:	/* security receive */
	case 0x86:	/* get LBA status */
		return true;
	}
	return false;
}

/* Admin commands that the kernel's driver itself needs (drivers/nvme/host of 6.12). */
bool guard_nvme_driver_admin_needed(u8 opcode, u8 fctype, u8 feature)
{
	switch (opcode) {
	case 0x00:	/* delete submission queue */
	case 0x01:	/* create submission queue */
	case 0x04:	/* delete completion queue */
	case 0x05:	/* create completion queue */
	case 0x08:	/* abort */
	case 0x0c:	/* asynchronous event request */
	case 0x18:	/* keep alive */
	case 0x7c:	/* doorbell buffer config */
		return true;
	case 0x09:	/* set features: of this session only, no saved values */
		switch (feature) {
		case NVME_FEAT_NUM_QUEUES:
		case NVME_FEAT_ASYNC_EVENT:
		case NVME_FEAT_AUTO_PST:
		case NVME_FEAT_HOST_MEM_BUF:
		case NVME_FEAT_TIMESTAMP:
		case NVME_FEAT_KATO:
		case NVME_FEAT_HOST_BEHAVIOR:
			return true;
		}
		return false;
	case 0x7f:
		switch (fctype) {
		case nvme_fabrics_type_property_get:
		case nvme_fabrics_type_property_set:
		case nvme_fabrics_type_connect:
		case nvme_fabrics_type_auth_send:
		case nvme_fabrics_type_auth_receive:
			return true;
		}
		break;
	}
	return guard_nvme_user_admin_reads(opcode);
}

/* ATA commands by command and feature register (ACS-4). */
bool guard_ata_reads(u8 command, u8 feature)
{
	switch (command) {
	case 0x20: case 0x21: case 0x24: case 0x25: case 0x29: case 0x2a:	/* read sectors, DMA, multiple, stream */
	case 0x2b: case 0x60: case 0xc4: case 0xc8: case 0xc9:
	case 0x40: case 0x41: case 0x42:	/* read verify */
	case 0x27: case 0xf8:			/* read native max address */
	case 0x2f: case 0x47:			/* read log */
	case 0xa1: case 0xec:			/* identify (packet) device */
	case 0xe5:				/* check power mode */
	case 0x5c: case 0x5d:			/* trusted receive */
		return true;
	case 0x4a:				/* ZAC management in: report zones */
		return feature == 0x00;
	case 0xb0:				/* SMART: read data, thresholds, log, return status */
		return feature == 0xd0 || feature == 0xd1 || feature == 0xd5 || feature == 0xda;
	}
	return false;
}

/* ATA PASS-THROUGH (12), (16), (32). The protocol says which way the data goes; a reset is a protocol, too. */
static bool ata_passthrough_reads(const u8 *cdb, unsigned int length)
{
	unsigned int protocol = (cdb[1] >> 1) & 0xf;
	u8 command, feature;

	if (protocol == 0 || protocol == 1 || protocol == 5 || protocol == 9 || protocol == 11)
		return false;	/* hard reset, SRST, PIO out, device reset, UDMA out */
	if (cdb[0] == ATA_16 && length >= 16) {
		command = cdb[14];
		feature = cdb[4];
	} else if (cdb[0] == ATA_12 && length >= 12) {
		command = cdb[9];
		feature = cdb[3];
	} else {
		return false;
	}
	return guard_ata_reads(command, feature);
}

/* A command descriptor block of SPC/SBC/MMC. `to_device`: it would send data, which no command below needs. */
enum guard_verdict guard_judge_scsi(const u8 *cdb, unsigned int length, bool to_device)
{
	if (length < 6)
		return VERDICT_REFUSE;
	switch (cdb[0]) {
	case SYNCHRONIZE_CACHE:
	case SYNCHRONIZE_CACHE_16:
	case ALLOW_MEDIUM_REMOVAL:
		return to_device ? VERDICT_REFUSE : VERDICT_KEEP_BACK;
	case START_STOP:
		/* START without a power condition and without LOEJ makes a disk ready; a stop is kept from it. */
		if (to_device || (cdb[4] & 0x02))
			return VERDICT_REFUSE;
		return (cdb[4] & 0xf1) == 0x01 ? VERDICT_READ : VERDICT_KEEP_BACK;
	}
	if (to_device)
		return VERDICT_REFUSE;
	switch (cdb[0]) {
	case TEST_UNIT_READY: case REQUEST_SENSE: case INQUIRY: case REPORT_LUNS:
	case READ_6: case READ_10: case READ_12: case READ_16:
	case READ_CAPACITY: case 0x23 /* read format capacities */:
	case MODE_SENSE: case MODE_SENSE_10:
	case RECEIVE_DIAGNOSTIC: case READ_BUFFER: case READ_DEFECT_DATA: case 0xb7:
	case READ_TOC: case 0x42 /* read sub-channel */: case 0x46 /* get configuration */: case 0x4a /* get event status */:
	case 0x51 /* read disc information */: case 0x52 /* read track information */: case 0xad /* read disc structure */:
	case 0xac /* get performance */: case 0xb9: case 0xbe /* read CD */: case 0x44 /* read header */:
	case PERSISTENT_RESERVE_IN: case MAINTENANCE_IN: case SECURITY_PROTOCOL_IN:
	case 0x8c /* read attribute */: case 0x95 /* ZBC in: report zones */: case READ_BLOCK_LIMITS:
		return VERDICT_READ;
	case VERIFY: case VERIFY_12: case VERIFY_16:
		return cdb[1] & 0x06 ? VERDICT_REFUSE : VERDICT_READ;	/* BYTCHK sends data */
	case SERVICE_ACTION_IN_16:
		/* read capacity(16), get LBA status; other actions control streams and background work */
		return (cdb[1] & 0x1f) == 0x10 || (cdb[1] & 0x1f) == 0x12 ? VERDICT_READ : VERDICT_REFUSE;
	case LOG_SENSE:
		return cdb[1] & 0x03 ? VERDICT_REFUSE : VERDICT_READ;	/* SP saves, PCR resets */
	case VARIABLE_LENGTH_CMD:
		return length >= 10 && cdb[8] == 0x00 && cdb[9] == 0x09 ? VERDICT_READ : VERDICT_REFUSE;	/* READ(32) */
	case ATA_12: case ATA_16:
		return ata_passthrough_reads(cdb, length) ? VERDICT_READ : VERDICT_REFUSE;
	}
	return VERDICT_REFUSE;
}

/* What asks, or changes only how this kernel sees a disk. SG_IO and NVMe commands are judged by what they carry. */
bool guard_block_ioctl_harmless(unsigned int cmd)
{
	switch (cmd) {
	case BLKROGET: case BLKRRPART: case BLKGETSIZE: case BLKGETSIZE64: case BLKFLSBUF: case BLKRASET: case BLKRAGET:
	case BLKFRASET: case BLKFRAGET: case BLKSECTGET: case BLKSSZGET: case BLKPG: case BLKBSZGET: case BLKBSZSET:
	case BLKIOMIN: case BLKIOOPT: case BLKALIGNOFF: case BLKPBSZGET: case BLKDISCARDZEROES: case BLKROTATIONAL:
	case BLKGETDISKSEQ: case BLKREPORTZONE: case BLKGETZONESZ: case BLKGETNRZONES:
	case FIGETBSZ: case FIOCLEX: case FIONCLEX: case FIONBIO: case FIOASYNC: case FIONREAD: case TCGETS: case TIOCGWINSZ:
	case HDIO_GETGEO: case HDIO_GET_IDENTITY: case HDIO_GET_32BIT: case HDIO_GET_DMA: case HDIO_GET_ACOUSTIC:
	case CDROM_GET_CAPABILITY: case CDROMMULTISESSION: case CDROMREADTOCHDR: case CDROMREADTOCENTRY:
	case CDROM_DRIVE_STATUS: case CDROM_DISC_STATUS: case CDROM_MEDIA_CHANGED: case CDROM_LAST_WRITTEN:
	case DVD_READ_STRUCT:
	case FDGETFDCSTAT /* libblkid asks each disk whether it is a floppy */:
	case LOOP_GET_STATUS: case LOOP_GET_STATUS64:
	case NVME_IOCTL_ID: case NVME_IOCTL_RESCAN:
		return true;
	}
	return guard_char_ioctl_harmless(cmd);
}

/* The same for /dev/sg, /dev/bsg and the nodes of NVMe controllers. */
bool guard_char_ioctl_harmless(unsigned int cmd)
{
	switch (cmd) {
	case FIOCLEX: case FIONCLEX: case FIONBIO: case FIOASYNC: case FIONREAD: case TCGETS: case TIOCGWINSZ:
	case SG_GET_VERSION_NUM: case SG_SET_TIMEOUT: case SG_GET_TIMEOUT: case SG_GET_RESERVED_SIZE:
	case SG_SET_RESERVED_SIZE: case SG_EMULATED_HOST: case SG_GET_SCSI_ID: case SG_GET_SG_TABLESIZE:
	case SG_GET_NUM_WAITING: case SG_GET_ACCESS_COUNT: case SG_GET_KEEP_ORPHAN: case SG_GET_REQUEST_TABLE:
	case SCSI_IOCTL_GET_IDLUN: case SCSI_IOCTL_GET_BUS_NUMBER: case SCSI_IOCTL_PROBE_HOST: case SCSI_IOCTL_GET_PCI:
	case SCSI_IOCTL_TEST_UNIT_READY:
	case NVME_IOCTL_ID: case NVME_IOCTL_RESCAN:
		return true;
	}
	return false;
}

/* Modules whose character devices reach no disk, or end on block devices that are guarded themselves. Others (RAID
 * controllers' management nodes, NVDIMM, MMC's RPMB, vendor drivers) may carry commands to a disk: no ioctl on them. */
bool guard_char_module_harmless(const char *module)
{
	static const char *const harmless[] = {
		"loop", "dm_mod", "zfs", "btrfs", "fuse", "autofs4", "ipmi_devintf", "ipmi_watchdog", "drm", "evdev", "uinput",
		"hid", "uhid", "mousedev", "joydev", "input_leds", "tun", "macvtap", "tap", "virtio_console", "iTCO_wdt",
		"watchdog", "sp5100_tco", "rfkill", "cdc_acm", "usbserial", "ptp", "pps_core", "rtc_cmos", "i2c_dev",
		"cachefiles", "edac_core", "stasis_guard",
	};
	unsigned int at;

	for (at = 0; at < ARRAY_SIZE(harmless); at++)
		if (!strcmp(module, harmless[at]))
			return true;
	return false;
}
