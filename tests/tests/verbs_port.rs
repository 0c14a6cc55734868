//! The port while the device is open: addresses that come and go, links that go down and up.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::pattern;
use urxe_tests::verbs::pair::works;
use urxe_tests::verbs::{Change, Context, Errno, Op, Options, PATIENCE, Pair, RecvWr, SendWr, Status};
use urxe_tests::{World, in_world_with};

/// urxe0 sits on veth0, 10.77.0.1 and fd77::1.
fn linked(world: &World) -> Result<urxe_tests::Host> {
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    Ok(other)
}

fn ip(args: &str) -> Result<()> {
    let output = Command::new("ip").args(args.split(' ')).output()?;
    ensure!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn next_event(context: &Context) -> Result<v::ibv_event_type> {
    let event = context.async_event(PATIENCE)?.context("no event")?;
    ensure!(event.element() & 0xffff_ffff == 1, "not of port 1");
    Ok(event.kind())
}

/// The row of an IPv4 address.
fn row_of(context: &Context, last: u8) -> Result<Option<u32>> {
    let table = context.query_gid_table(64)?;
    // SAFETY: a GID is 16 bytes, whatever they are.
    let row = table.iter().find(|entry| unsafe { entry.gid.raw }[10..] == [0xff, 0xff, 10, 77, 0, last]);
    Ok(row.map(|entry| entry.gid_index))
}

#[test]
fn an_address_that_comes_gets_a_gid_and_receives() {
    in_world_with(linked, || {
        let (context, other) = (Context::open()?, Context::open()?);
        let rows = context.query_gid_table(64)?.len();
        ip("address add 10.77.0.9/24 dev veth0")?;
        for context in [&context, &other] {
            ensure!(next_event(context)? == v::IBV_EVENT_GID_CHANGE, "every context is told");
        }
        let row = row_of(&context, 9)?.context("it is not in the table")?;
        ensure!(row as usize == rows, "the others have kept their index");

        let options = Options { gid: row, ..Options::default() };
        let Pair { near, far } = &Pair::on(&context, &options)?;
        let (from, to) = (near.region(20_000)?, far.region(20_000)?);
        from.pages().write(0, &pattern(7, 20_000));
        let wc = near.complete(&SendWr::new(Op::Write(to.at(0)), &[from.sge(0, 20_000)]))?;
        ensure!(wc.status == Status::SUCCESS && to.pages().read(0, 20_000) == pattern(7, 20_000), "{wc:?}");
        Ok(())
    });
}

#[test]
fn an_address_that_goes_leaves_an_empty_row_for_the_next() {
    in_world_with(linked, || {
        let context = Context::open()?;
        for last in [8, 9] {
            ip(&format!("address add 10.77.0.{last}/24 dev veth0"))?;
            ensure!(next_event(&context)? == v::IBV_EVENT_GID_CHANGE);
        }
        let (eighth, ninth) = (row_of(&context, 8)?.context("8")?, row_of(&context, 9)?.context("9")?);
        ip("address del 10.77.0.8/24 dev veth0")?;
        ensure!(next_event(&context)? == v::IBV_EVENT_GID_CHANGE);
        ensure!(row_of(&context, 8)?.is_none() && row_of(&context, 9)? == Some(ninth));
        ensure!(context.query_gid_ex(1, eighth).err() == Some(Errno(libc::ENODATA)));
        // Nothing can be sent from it.
        let options = Options { gid: eighth, ..Options::default() };
        ensure!(Pair::on(&context, &options).is_err());
        ip("address add 10.77.0.7/24 dev veth0")?;
        ensure!(next_event(&context)? == v::IBV_EVENT_GID_CHANGE);
        ensure!(row_of(&context, 7)? == Some(eighth));
        Ok(())
    });
}

#[test]
fn a_link_that_goes_down_takes_the_port_with_it() {
    in_world_with(linked, || {
        let context = Context::open()?;
        ensure!(context.query_port(1)?.state == v::IBV_PORT_ACTIVE);
        ip("link set veth0 down")?;
        // The kernel has removed the IPv6 addresses, too.
        while next_event(&context)? != v::IBV_EVENT_PORT_ERR {}
        ensure!(context.query_port(1)?.state == v::IBV_PORT_DOWN);
        ip("link set veth0 up")?;
        while next_event(&context)? != v::IBV_EVENT_PORT_ACTIVE {}
        ensure!(context.query_port(1)?.state == v::IBV_PORT_ACTIVE);
        ensure!(row_of(&context, 1)?.is_some());
        Ok(())
    });
}

/// A device is there whatever its link is, as a card is, and its port comes up with the link.
#[test]
fn a_device_is_opened_while_its_link_is_down() {
    in_world_with(linked, || {
        ip("link set veth0 down")?;
        let context = Context::open()?;
        let port = context.query_port(1)?;
        ensure!((port.state, port.phys_state) == (v::IBV_PORT_DOWN, 3), "{} {}", port.state, port.phys_state);
        let row = row_of(&context, 1)?.context("the address stays")?;
        // The kernel cannot ask for the peer's MAC address.
        let refused = Pair::on(&context, &Options { gid: row, ..Options::default() }).err().context("it connects")?;
        ensure!(refused.downcast_ref() == Some(&Errno(libc::ENETUNREACH)), "{refused:#}");

        ip("link set veth0 up")?;
        while next_event(&context)? != v::IBV_EVENT_PORT_ACTIVE {}
        ensure!(context.query_port(1)?.state == v::IBV_PORT_ACTIVE);
        works(&Pair::on(&context, &Options { gid: row, ..Options::default() })?)
    });
}

#[test]
fn a_device_is_opened_before_its_interface_has_an_address() {
    in_world_with(linked, || {
        ip("address flush dev veth0")?;
        ip("link set veth0 down")?;
        let context = Context::open()?;
        ensure!(context.query_gid_table(64)?.len() == 1 && context.query_port(1)?.state == v::IBV_PORT_DOWN);
        ip("link set veth0 addrgenmode none")?;
        ip("link set veth0 up")?;
        ensure!(next_event(&context)? == v::IBV_EVENT_PORT_ACTIVE);
        ensure!(row_of(&context, 1)?.is_none() && context.query_port(1)?.state == v::IBV_PORT_ACTIVE);
        ip("address add 10.77.0.1/24 dev veth0")?;
        ensure!(next_event(&context)? == v::IBV_EVENT_GID_CHANGE);
        let gid = row_of(&context, 1)?.context("no row of its own")?;
        works(&Pair::on(&context, &Options { gid, ..Options::default() })?)
    });
}

/// A queue pair whose link goes down fails by its retries, and goes on after RESET.
#[test]
fn a_queue_pair_fails_while_the_link_is_down() {
    in_world_with(linked, || {
        let context = Context::open()?;
        let options = Options { timeout: 10, ..Options::default() };
        let pair = Pair::on(&context, &options)?;
        works(&pair)?;
        ip("link set veth0 down")?;
        while next_event(&context)? != v::IBV_EVENT_PORT_ERR {}
        let wc = pair.near.complete(&SendWr::new(Op::Send, &[]))?;
        ensure!(wc.status == Status::RETRY_EXC_ERR, "{wc:?}");
        ip("link set veth0 up")?;
        while next_event(&context)? != v::IBV_EVENT_PORT_ACTIVE {}
        for end in [&pair.near, &pair.far] {
            end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
        }
        pair.connect(&Options::default())?;
        works(&pair)
    });
}

#[test]
fn a_queue_pair_goes_on_if_its_link_was_down_shortly() {
    in_world_with(linked, || {
        let context = Context::open()?;
        let pair = Pair::on(&context, &Options { timeout: 19, ..Options::default() })?;
        ip("link set veth0 down")?;
        while next_event(&context)? != v::IBV_EVENT_PORT_ERR {}
        pair.far.qp.post_recv(&RecvWr::new(0, &[]))?;
        pair.near.qp.post_send(&SendWr::new(Op::Send, &[]))?;
        ip("link set veth0 up")?;
        let wc = pair.near.send_cq.next()?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        ensure!(pair.far.recv_cq.next()?.status == Status::SUCCESS);
        works(&pair)
    });
}

/// The old device is gone, and stays so. The name is a new one's.
#[test]
fn an_interface_that_comes_again_is_a_new_device() {
    in_world_with(linked, || {
        let context = Context::open()?;
        let pair = Pair::on(&context, &Options::default())?;
        ip("link del veth0")?;
        while next_event(&context)? != v::IBV_EVENT_DEVICE_FATAL {}
        ensure!(Context::open().err() == Some(Errno(libc::ENODEV)));
        ip("link add veth0 type veth peer name veth1")?;
        ip("link set veth1 up")?;
        ip("link set veth0 up")?;
        ip("address add 10.77.0.1/24 dev veth0")?;
        let again = Context::open()?;
        works(&Pair::on(&again, &Options::default())?)?;
        ensure!(context.query_port(1).err() == Some(Errno(libc::EIO)));
        drop(pair);
        works(&Pair::on(&again, &Options::default())?)
    });
}

#[test]
fn an_interface_that_is_removed_takes_the_device_with_it() {
    in_world_with(linked, || {
        let context = Context::open()?;
        let pair = Pair::on(&context, &Options::default())?;
        ip("link del veth0")?;
        while next_event(&context)? != v::IBV_EVENT_DEVICE_FATAL {}
        let broken = Errno(libc::EIO);
        ensure!(context.query_port(1).err() == Some(broken));
        ensure!(pair.near.qp.post_send(&SendWr::new(Op::Send, &[])).is_err_and(|error| error.errno == broken));
        // What there is can be destroyed.
        drop(pair);
        Ok(())
    });
}
