//! Packets that are lost on their way to this process.
//!
//! A socket filter (socket(7), `SO_ATTACH_FILTER`) throws packets away at random before the library sees them. It needs
//! no privileges and nothing of the machine's network, and takes whole GRO runs, as a full receive buffer does.

use std::fs;
use std::mem::size_of;
use std::os::fd::RawFd;

use anyhow::{Context as _, Result, ensure};

/// `BPF_LD | BPF_W | BPF_ABS`: loads a word of the packet, or of what the kernel offers beside it.
const LOAD: u16 = 0x20;
/// Where the kernel offers a random word: `SKF_AD_OFF + SKF_AD_RANDOM` (linux/filter.h).
const RANDOM: u32 = (-0x1000_i32 + 56).cast_unsigned();
/// `BPF_JMP | BPF_JGE | BPF_K`.
const IF_AT_LEAST: u16 = 0x35;
/// `BPF_RET | BPF_K`: as many bytes of the packet are kept.
const KEEP: u16 = 0x06;

/// Loses one in `one_in` of the packets that come to the UDP sockets that this process has open now.
pub fn lose(one_in: u32) -> Result<()> {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD, 0, 0, RANDOM),
        step(IF_AT_LEAST, 1, 0, u32::MAX / one_in),
        step(KEEP, 0, 0, 0),
        step(KEEP, 0, 0, u32::MAX),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    let mut attached = 0;
    for fd in udp_sockets()? {
        // SAFETY: a program of four steps, which the kernel copies.
        let returned = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                libc::socklen_t::try_from(size_of::<libc::sock_fprog>())?,
            )
        };
        let error = std::io::Error::last_os_error();
        // Another thread may have closed it since.
        ensure!(returned == 0 || error.raw_os_error() == Some(libc::EBADF), "SO_ATTACH_FILTER: {error}");
        attached += usize::from(returned == 0);
    }
    ensure!(attached > 0, "no UDP socket is open");
    Ok(())
}

/// Packets lost so far: the sockets' drops in /proc/net/udp and udp6.
pub fn lost() -> Result<u64> {
    let mut total = 0;
    for table in ["/proc/self/net/udp", "/proc/self/net/udp6"] {
        for line in fs::read_to_string(table)?.lines().skip(1) {
            let drops = line.split_whitespace().next_back().context("an empty line")?;
            total += drops.parse::<u64>().with_context(|| format!("{table}: {line}"))?;
        }
    }
    Ok(total)
}

fn udp_sockets() -> Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let fd: RawFd = entry?.file_name().to_string_lossy().parse()?;
        let mut protocol = 0_i32;
        let mut len = libc::socklen_t::try_from(size_of::<i32>())?;
        // SAFETY: room for a number; fails for what is no socket.
        let returned = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, (&raw mut protocol).cast(), &raw mut len)
        };
        if returned == 0 && protocol == libc::IPPROTO_UDP {
            found.push(fd);
        }
    }
    Ok(found)
}
