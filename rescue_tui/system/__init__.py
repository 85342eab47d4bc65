"""The only layer that touches the machine: processes, udev, mounts, the write guard, the journal."""
