//! IBV_ACCESS_FLUSH_PERSISTENT: for memory that outlives the machine's end, which is that of files.
//!
//! (libibverbs 44 has no way to post a FLUSH: what one does is shown by the tests of `engine` and `sim`.)

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::{Context, Errno, Mr, Pages, Pd};

/// `IBV_ACCESS_FLUSH_PERSISTENT`, and `IBV_DEVICE_FLUSH_PERSISTENT`, which these headers do not have yet.
const ACCESS: u32 = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE | 1 << 9;
const CAPABILITY: u64 = 1 << 39;

const LEN: usize = 8192;

fn map(file: &File, sharing: i32) -> Result<u64> {
    file.set_len(LEN as u64)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, sharing, file.as_raw_fd(), 0) };
    ensure!(addr != libc::MAP_FAILED, "mmap: {}", Errno::last());
    Ok(addr.expose_provenance() as u64)
}

fn is_tmpfs(file: &File) -> Result<bool> {
    let mut answer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: room for the answer.
    ensure!(unsafe { libc::fstatfs(file.as_raw_fd(), answer.as_mut_ptr()) } == 0, "fstatfs: {}", Errno::last());
    // SAFETY: filled in.
    Ok(unsafe { answer.assume_init() }.f_type == libc::TMPFS_MAGIC)
}

#[test]
fn files_last_and_other_memory_does_not() {
    in_world(|| {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        ensure!(context.query_device_ex()?.device_cap_flags_ex & CAPABILITY != 0);

        let named = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"))?;
        let shared = map(named.as_file(), libc::MAP_SHARED)?;
        let registered = Mr::of_address(&pd, shared, LEN, ACCESS);
        if is_tmpfs(named.as_file())? {
            ensure!(registered.err() == Some(Errno(libc::EINVAL)), "the build folder is in memory");
        } else {
            registered?;
        }
        let private = map(named.as_file(), libc::MAP_PRIVATE)?;
        let (in_memory, _file) = Pages::of_file(LEN);
        let anonymous = Pages::new(LEN);
        for (what, addr) in [("private", private), ("memfd", in_memory.addr()), ("anonymous", anonymous.addr())] {
            ensure!(Mr::of_address(&pd, addr, LEN, ACCESS).err() == Some(Errno(libc::EINVAL)), "{what}");
        }
        Ok(())
    });
}
