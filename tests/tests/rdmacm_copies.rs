//! Copies of a connection request: all are refused, or none. The network is slow, so that the requester sends copies before
//! it hears of the refusal, and they arrive after it.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::in_world_with;
use urxe_tests::rdmacm::{Channel, Id, kind, loopback, reason};
use urxe_tests::verbs::PATIENCE;
use urxe_tests::verbs::child::{Child, Parent};

const PORT: u16 = 7200;
/// Ten times what a requester waits before it sends the first copy.
const SLOW: &str = "delay=1s,dir=tx";

/// Opens the device by taking a port that is not used.
fn open(channel: &Channel, port: u16) -> Result<Id> {
    let id = channel.id()?;
    id.bind(loopback(port))?;
    Ok(id)
}

/// Listens when it is told to, for a single connection, and ends when it has been.
fn serve_once(parent: &mut Parent) -> Result<()> {
    parent.receive::<1>()?;
    let channel = Channel::new()?;
    let _device = open(&channel, PORT + 1)?;
    parent.send(&[1])?;
    parent.receive::<1>()?;
    let _listener = channel.listen(loopback(PORT), 1)?;
    parent.send(&[1])?;
    let request = channel.expect(kind::CONNECT_REQUEST).context("the server")?;
    ensure!(request.private_data.starts_with(b"second"), "a request that was refused: {:?}", request.private_data);
    let connection = request.id.context("no id")?;
    connection.accept()?;
    channel.expect(kind::ESTABLISHED).context("the server, establishing")?;
    parent.send(&[1])?;
    Ok(())
}

fn refuse_then_accept(mut server: Child, server_is_owner: bool) -> Result<()> {
    let asked = ask_twice(&mut server, server_is_owner);
    // Its failure is the cause of the requester's.
    server.finish().and(asked)
}

fn ask_twice(server: &mut Child, server_is_owner: bool) -> Result<()> {
    let channel = Channel::new()?;
    let _device = if server_is_owner { None } else { Some(open(&channel, PORT + 2)?) };
    server.send(&[1])?;
    server.receive::<1>()?;
    let first = channel.connect(loopback(PORT), b"first")?;
    let event = channel.next_within(PATIENCE)?;
    let told = (event.kind, event.status);
    ensure!(told == (kind::REJECTED, reason::INVALID_SERVICE_ID), "{told:?}");
    drop(event);
    drop(first);
    server.send(&[1])?;
    server.receive::<1>()?;
    let second = channel.connect(loopback(PORT), b"second")?;
    channel.expect(kind::CONNECT_RESPONSE).context("the second request")?;
    second.establish()?;
    server.receive::<1>()?;
    Ok(())
}

//= spec/connections.md#cm-016
//= type=test
//# All copies of a request MUST be refused, or none.
#[test]
fn copies_of_a_refused_request_do_not_reach_a_listener_that_comes_later() {
    let slow = |world: &urxe_tests::World| {
        world.host().set_env("URXE_FAULTS", SLOW);
        Ok(())
    };
    in_world_with(slow, || {
        // Before librdmacm is used here: its devices would be the children's.
        let servers = [Child::fork(serve_once)?, Child::fork(serve_once)?];
        for (server, server_is_owner) in servers.into_iter().zip([true, false]) {
            refuse_then_accept(server, server_is_owner)
                .with_context(|| format!("the server owns the address: {server_is_owner}"))?;
        }
        Ok(())
    });
}
