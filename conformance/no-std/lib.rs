//! Two queue pairs exchange a SEND, a WRITE and a READ in a library without `std`.
//!
//! That this links is the proof: a dependency that brings `std` along brings a second panic handler, which the
//! compiler refuses. `main.c` calls it.

#![no_std]

extern crate alloc;

#[path = "../../engine/examples/two_queue_pairs/stack.rs"]
mod stack;

use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv4Addr};
use core::panic::PanicInfo;

use linked_list_allocator::LockedHeap;
use stack::{Stack, exchange};
use urxe_engine::SendOp;
use urxe_wire::Qpn;

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

fn run() -> Result<(), i32> {
    let (here, there) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));
    let (qpn_a, qpn_b) = (Qpn::new(0x11), Qpn::new(0x22));
    let (mut a, mut b) = (Stack::new(here, qpn_a, 16_384), Stack::new(there, qpn_b, 16_384));
    a.connect(there, qpn_b).map_err(|_| 1)?;
    b.connect(here, qpn_a).map_err(|_| 2)?;
    let text = b"no std";
    a.poke(0, text).map_err(|_| 3)?;
    b.post_recv(1, 0, 64).map_err(|_| 4)?;
    a.post_send(2, SendOp::Send, 0, 6).map_err(|_| 5)?;
    a.post_send(3, SendOp::Write(b.remote(8192)), 0, 8192).map_err(|_| 6)?;
    a.post_send(4, SendOp::Read(b.remote(8192)), 8192, 6).map_err(|_| 7)?;
    let mut packets = 0_u32;
    exchange(&mut a, &mut b, |_| {
        packets += 1;
        packets % 7 == 3
    });
    for (buffer, offset) in [(&b, 0), (&b, 8192), (&a, 8192)] {
        if buffer.peek(offset, 6).map_err(|_| 8)? != text {
            return Err(9);
        }
    }
    if a.completions.0.len() == 3 && b.completions.0.len() == 1 { Ok(()) } else { Err(10) }
}
