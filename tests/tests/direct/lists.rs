//! Lists of requests that are carried out while they are posted.

use anyhow::ensure;
use urxe_ffi::verbs as v;
use urxe_tests::own_counter as counter;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::window::part;
use urxe_tests::verbs::{Mr, Op, Options, Pair, SendWr, Status, Window};

use crate::in_direct_world;
use crate::memory::is_direct;

/// Requests of a list that are carried out while it is posted fill the send queue for that call alone: a bind that is no request of such a
/// list finds room.
#[test]
fn a_bind_behind_a_list() {
    in_direct_world(|| {
        let options = Options::default();
        let pair = Pair::new(&options)?;
        let (local, memory) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        ensure!(is_direct(&pair, &memory)?);
        let own = Mr::alloc(&pair.near.pd, PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
        let window = Window::new(&pair.near.pd, v::IBV_MW_TYPE_1)?;
        let room = usize::try_from(options.cap.max_send_wr)?;
        let before = counter("direct_requests")?;
        let write = SendWr::new(Op::Write(memory.at(0)), &[local.sge(0, 8)]);
        pair.near.qp.post_sends(&vec![write; room])?;
        ensure!(counter("direct_requests")? == before + room as u64);
        window.bind(&pair.near.qp, 7, part(&own, 0, PAGE, v::IBV_ACCESS_REMOTE_WRITE))?;
        let ends = pair.near.send_cq.take(room + 1)?;
        ensure!(ends.iter().all(|wc| wc.status == Status::SUCCESS) && ends[room].wr_id == 7);
        Ok(())
    });
}
