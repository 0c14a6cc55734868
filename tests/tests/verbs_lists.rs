//! Requests with as many scatter/gather elements, and as much inline data, as the device has room for.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::qp::CAP;
use urxe_tests::verbs::{Op, Options, Pair, RecvWr, SendWr, Status};

const SGES: usize = 32;
/// Between elements, so that a wrong length or order shows.
const STRIDE: usize = 512;

fn pair() -> Result<Pair> {
    let most = u32::try_from(SGES)?;
    let cap = v::ibv_qp_cap { max_send_sge: most, max_recv_sge: most, max_inline_data: 1024, ..CAP };
    Pair::new(&Options { cap, ..Options::default() })
}

/// Elements of 1, 14, 27... bytes, each at a place of its own: packets end within them.
fn lengths() -> impl Iterator<Item = (usize, usize)> {
    (0..SGES).map(|index| (index * STRIDE, 1 + index * 13))
}

fn gathered(bytes: &[u8]) -> Vec<u8> {
    lengths().flat_map(|(at, length)| bytes[at..at + length].to_vec()).collect()
}

#[test]
fn thirty_two_elements() {
    in_world(|| {
        let Pair { near, far } = &pair()?;
        ensure!(near.context.query_device()?.max_sge == i32::try_from(SGES)?);
        let (from, to) = (near.region(SGES * STRIDE)?, far.region(SGES * STRIDE)?);
        let total: usize = lengths().map(|(_, length)| length).sum();
        from.pages().write(0, &pattern(1, SGES * STRIDE));
        let gather: Vec<_> = lengths().map(|(at, length)| from.sge(at, length)).collect();
        // Scattered in the reverse order of places.
        let scatter: Vec<_> =
            lengths().zip(0..).map(|((_, length), index)| to.sge((SGES - 1 - index) * STRIDE, length)).collect();
        let arrived = || -> Vec<u8> {
            let piece = |((_, length), index)| to.pages().read((SGES - 1 - index) * STRIDE, length);
            lengths().zip(0..).flat_map(piece).collect()
        };
        let expected = gathered(&pattern(1, SGES * STRIDE));

        far.qp.post_recv(&RecvWr::new(1, &scatter))?;
        let wc = near.complete(&SendWr::new(Op::Send, &gather))?;
        ensure!(wc.status == Status::SUCCESS, "SEND: {wc:?}");
        let wc = far.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS && wc.byte_len as usize == total && arrived() == expected, "{wc:?}");

        let wc = near.complete(&SendWr::new(Op::Write(to.at(0)), &gather))?;
        ensure!(wc.status == Status::SUCCESS && to.pages().read(0, total) == expected, "WRITE: {wc:?}");

        let back = near.region(SGES * STRIDE)?;
        let scatter: Vec<_> = lengths().map(|(at, length)| back.sge(at, length)).collect();
        let wc = near.complete(&SendWr::new(Op::Read(to.at(0)), &scatter))?;
        ensure!(wc.status == Status::SUCCESS, "READ: {wc:?}");
        ensure!(gathered(&back.pages().read(0, SGES * STRIDE)) == expected);
        Ok(())
    });
}

#[test]
fn a_thousand_inline_bytes_from_memory_that_is_not_registered() {
    in_world(|| {
        let Pair { near, far } = &pair()?;
        ensure!(near.qp.cap().max_inline_data == 1024);
        let to = far.region(4096)?;
        let bytes = pattern(3, 1024);
        let (front, back) = bytes.split_at(1000);
        let sge = |part: &[u8]| v::ibv_sge {
            addr: part.as_ptr() as u64,
            length: u32::try_from(part.len()).unwrap_or(u32::MAX),
            lkey: 0,
        };
        let list = [sge(front), sge(back)];
        let wc = near.complete(&SendWr::new(Op::Write(to.at(8)), &list).with(v::IBV_SEND_INLINE))?;
        ensure!(wc.status == Status::SUCCESS && to.pages().read(8, 1024) == bytes, "{wc:?}");
        let too_long = pattern(3, 1025);
        let refused = near.qp.post_send(&SendWr::new(Op::Write(to.at(8)), &[sge(&too_long)]).with(v::IBV_SEND_INLINE));
        ensure!(refused.is_err_and(|error| error.errno.0 == libc::EINVAL));
        Ok(())
    });
}
