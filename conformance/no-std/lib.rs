//! Two queue pairs exchange a SEND, a WRITE and a READ in a library without `std`.
//!
//! That this links is the proof: a dependency that brings `std` along brings a second panic handler, which the
//! compiler refuses. `main.c` calls it.

#![no_std]

extern crate alloc;

#[path = "../../engine/examples/two_queue_pairs/end.rs"]
mod end;

use core::mem::MaybeUninit;
use core::panic::PanicInfo;

use end::{End, exchange};
use linked_list_allocator::LockedHeap;
use urxe_engine::{Instant, Memory, RecvWr, SendOp, WcStatus};

#[global_allocator]
static ALLOCATOR: LockedHeap = LockedHeap::empty();

static mut HEAP: [MaybeUninit<u8>; 1 << 20] = [MaybeUninit::uninit(); 1 << 20];

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    loop {}
}

/// Returns 0 if all three messages arrive although one packet in seven is lost, else the number of the step that failed.
/// Call it once.
#[unsafe(no_mangle)]
pub extern "C" fn urxe_two_queue_pairs() -> i32 {
    // SAFETY: called once, before the first allocation; nothing else names HEAP.
    unsafe { ALLOCATOR.lock().init_from_slice(&mut *(&raw mut HEAP)) };
    run().err().unwrap_or(0)
}

/// Returns the number of successful completions; `None` if one failed.
fn completed(end: &mut End) -> Option<usize> {
    let mut count = 0;
    while let Some(cqe) = end.endpoint.poll_cq(end.cq) {
        if cqe.status != WcStatus::Success {
            return None;
        }
        count += 1;
    }
    Some(count)
}

fn run() -> Result<(), i32> {
    let now = Instant::default();
    let mut ends = End::pair(now).map_err(|_| 1)?;
    let text = b"no std";
    let [a, b] = &mut ends;
    a.endpoint.memory().write(a.buffer.addr, text).map_err(|_| 2)?;
    let recv = RecvWr { wr_id: 1, buffers: b.buffer.sge(0, 64) };
    b.endpoint.post_recv(now, b.qpn, recv).map_err(|_| 3)?;
    a.post(now, 2, SendOp::Send, a.buffer.sge(0, 6)).map_err(|_| 4)?;
    a.post(now, 3, SendOp::Write(b.buffer.remote(8192)), a.buffer.sge(0, 8192)).map_err(|_| 5)?;
    a.post(now, 4, SendOp::Read(b.buffer.remote(8192)), a.buffer.sge(8192, 6)).map_err(|_| 6)?;
    let mut packets = 0_u32;
    exchange(&mut ends, now, |_| {
        packets += 1;
        packets % 7 != 3
    });
    let [a, b] = &mut ends;
    let arrived = [b.holds(0, text), b.holds(8192, text), a.holds(8192, text)];
    if !arrived.iter().all(|it| matches!(it, Ok(true))) {
        return Err(7);
    }
    if completed(a) == Some(3) && completed(b) == Some(1) { Ok(()) } else { Err(8) }
}
