//! Maps and programs of eBPF (bpf(2)).

use core::mem::size_of;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;

const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE` and `XDP_FLAGS_SKB_MODE`: in the driver, or in front of the network stack.
const MODES: [u32; 2] = [1 << 2, 1 << 1];
const NAME: &[u8; 16] = b"urxe\0\0\0\0\0\0\0\0\0\0\0\0";
/// Bytes for the messages of the kernel's verifier about a program that it refuses.
const LOG: usize = 1 << 16;

/// Kind of a map (`enum bpf_map_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum MapKind {
    /// An element for each processor.
    PerCpuArray = 6,
    /// Sockets by number.
    XskMap = 17,
}

/// Makes a map of numbered elements.
pub(super) fn create_map(kind: MapKind, value_size: u32, max_entries: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        map_name: [u8; 16],
    }
    let (map_flags, inner_map_fd, numa_node) = (0, 0, 0);
    descriptor(
        MAP_CREATE,
        &Attr {
            map_type: kind as u32,
            key_size: 4,
            value_size,
            max_entries,
            map_flags,
            inner_map_fd,
            numa_node,
            map_name: *NAME,
        },
    )
}

/// Puts a socket into a map.
pub(super) fn set_socket(map: BorrowedFd<'_>, number: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attr {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let (key, value) = (number, socket.as_raw_fd());
    let attr = Attr {
        map: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: (&raw const key) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    call(MAP_UPDATE, &attr).map(drop)
}

/// Loads a program for XDP.
pub(super) fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attr {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
    }
    let mut attr = Attr {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: u32::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        insns: instructions.as_ptr() as u64,
        // No function that the program calls asks for another.
        license: c"MIT OR Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *NAME,
    };
    let loaded = descriptor(PROG_LOAD, &attr);
    if cfg!(test) && loaded.is_err() {
        let mut log = vec![0_u8; LOG];
        (attr.log_level, attr.log_size, attr.log_buf) = (1, u32::try_from(LOG).unwrap_or(0), log.as_mut_ptr() as u64);
        let _ = descriptor(PROG_LOAD, &attr);
        eprintln!("{}", String::from_utf8_lossy(&log).trim_end_matches('\0'));
    }
    loaded
}

/// Attaches a program to an interface until the link is closed: in its driver, where that can.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32) -> io::Result<OwnedFd> {
    let in_mode = |flags| {
        #[repr(C)]
        struct Attr {
            program: u32,
            interface: u32,
            attach_type: u32,
            flags: u32,
        }
        let program = program.as_raw_fd().cast_unsigned();
        descriptor(LINK_CREATE, &Attr { program, interface, attach_type: ATTACH_XDP, flags })
    };
    let [driver, generic] = MODES;
    in_mode(driver).or_else(|refused| match refused.raw_os_error() {
        // EBUSY: there is a program already, of either mode.
        Some(libc::EPERM | libc::EBUSY | libc::EEXIST | libc::ENODEV) => Err(refused),
        _ => in_mode(generic),
    })
}

/// Puts another program in the place of the one that is attached, between two frames.
pub(super) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attr {
        link: u32,
        program: u32,
        flags: u32,
        old_program: u32,
    }
    let [link, program] = [link, program].map(|fd| fd.as_raw_fd().cast_unsigned());
    call(LINK_UPDATE, &Attr { link, program, flags: 0, old_program: 0 }).map(drop)
}

fn descriptor<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, which nobody else knows; it is close-on-exec.
    call(command, attr).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_int> {
    // SAFETY: attributes of the length that is said, all of whose pointers are to what is read meanwhile; the log is written to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, core::ptr::from_ref(attr), size_of::<T>()) };
    match libc::c_int::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
