//! `ibv_reg_dmabuf_mr(3)`. This kind of machine has no exporter of dma-bufs; a memfd stands in, which is a file that one
//! maps as well: what is registered, and where, shows in the file.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use urxe_ffi::{functions as f, verbs as v};
use urxe_tests::in_world;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::{Errno, Handle, Op, Options, Pages, Pair, Pd, Remote, SendWr, Status};

fn register(pd: &Pd, offset: u64, len: usize, iova: u64, fd: RawFd, access: u32) -> Result<Handle<v::ibv_mr>, Errno> {
    let access = i32::try_from(access).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: a live domain; what the descriptor is, is for the verb to find out.
    unsafe { Handle::new(f::ibv_reg_dmabuf_mr(pd.raw(), offset, len, iova, fd, access), f::ibv_dereg_mr) }
}

#[test]
fn a_part_of_a_buffer_is_known_by_addresses_of_choice() {
    in_world(|| {
        const LEN: usize = 5000;
        let (offset, iova) = (PAGE as u64 + 100, 0x7000_0000_0000 + 100);
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (_pages, file) = Pages::of_file(4 * PAGE);
        let mr = register(&far.pd, offset, LEN, iova, file.as_raw_fd(), ALL_ACCESS)?;
        // SAFETY: a field of a live region.
        let at = |addr| Remote { addr, rkey: unsafe { (*mr.raw()).rkey } };
        let from = near.region(LEN + 1)?;
        from.pages().write(0, &pattern(1, LEN));
        let wc = near.complete(&SendWr::new(Op::Write(at(iova)), &[from.sge(0, LEN)]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        let mut written = vec![0; LEN];
        file.read_exact_at(&mut written, offset)?;
        ensure!(written == pattern(1, LEN), "other bytes than were written");
        let mut before = [1; 100];
        file.read_exact_at(&mut before, offset - 100)?;
        ensure!(before == [0; 100], "something before the region");
        let wc = near.complete(&SendWr::new(Op::Write(at(iova)), &[from.sge(0, LEN + 1)]))?;
        ensure!(wc.status == Status::REM_ACCESS_ERR, "beyond its end: {wc:?}");
        Ok(())
    });
}

#[test]
fn unmappable_files_are_refused() {
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        let (_pages, file) = Pages::of_file(PAGE);
        let refused = |offset, iova, fd, access, errno| -> Result<()> {
            let error = register(&pair.far.pd, offset, 64, iova, fd, access).err();
            ensure!(error == Some(Errno(errno)), "{error:?}, not {errno}");
            Ok(())
        };
        let fd = file.as_raw_fd();
        refused(8, 16, fd, ALL_ACCESS, libc::EINVAL)?;
        refused(0, 0, -1, ALL_ACCESS, libc::EBADF)?;
        let directory = File::open("/")?;
        refused(0, 0, directory.as_raw_fd(), 0, libc::EINVAL)?;
        let read_only = File::open(format!("/proc/self/fd/{fd}"))?;
        refused(0, 0, read_only.as_raw_fd(), ALL_ACCESS, libc::EACCES)?;
        drop(register(&pair.far.pd, 0, 64, 0, read_only.as_raw_fd(), 0)?);
        Ok(())
    });
}
