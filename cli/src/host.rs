//! Checks of the machine for an installed provider, which nothing preloads; they only warn.

use std::path::Path;

use crate::layout::DEV_DIR;

/// `NETLINK_RDMA` of linux/netlink.h.
const NETLINK_RDMA: libc::c_int = 20;

/// Obstacles that keep libibverbs from listing a urxe device on this machine, one line each with its remedy.
pub(crate) fn obstacles() -> Vec<String> {
    let mut lines = Vec::new();
    if kernel_has_rdma() {
        lines.push(
            "this kernel has RDMA support (NETLINK_RDMA), so libibverbs asks the kernel for devices and does not look \
             at SYSFS_PATH; start programs with `urxe run -- PROGRAM`, or unload ib_core"
                .to_owned(),
        );
    }
    let device = Path::new(DEV_DIR).join("uverbs0");
    if !device.exists() {
        lines.push(format!(
            "{} is missing and libibverbs lists no device without it; as root: `urxe install`, or `mkdir -p {DEV_DIR} \
             && mknod -m 666 {} c 1 3`",
            device.display(),
            device.display()
        ));
    }
    lines
}

/// Whether `NETLINK_RDMA` sockets can be created. libibverbs then takes the kernel's device list as final, even when
/// it is empty (libibverbs/init.c, `find_sysfs_devs_nl`).
pub(crate) fn kernel_has_rdma() -> bool {
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_RDMA) };
    if fd < 0 {
        return false;
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    unsafe { libc::close(fd) };
    true
}
