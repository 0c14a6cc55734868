//! How connections end: what a peer is told when it is refused, when nobody is there, and when a process dies; and that
//! nothing is left of them. The events and statuses are those of the kernel's rdma_cm.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_tests::rdmacm::{Channel, Id, ask_of_what_is_closed, kind, loopback, reason};
use urxe_tests::verbs::child::Child;
use urxe_tests::verbs::{Errno, PATIENCE};
use urxe_tests::{in_world, in_world_with, wait_until};

/// Room for private data in a REJ (`IB_CM_REJ_PRIVATE_DATA_SIZE`): the application sees all of it.
const REJ_DATA: usize = 148;

fn expect_rejected(channel: &Channel, status: i32) -> Result<Vec<u8>> {
    let event = channel.next_within(PATIENCE)?;
    ensure!(event.kind == kind::REJECTED && event.status == status, "event {} (status {})", event.kind, event.status);
    Ok(event.private_data)
}

#[test]
fn request_without_listener_is_rejected() {
    in_world(|| {
        let channel = Channel::new()?;
        let _id = channel.connect(loopback(7001), &[])?;
        expect_rejected(&channel, reason::INVALID_SERVICE_ID)?;
        // A port that is bound, but not listened at, is nobody's either.
        let bound = channel.id()?;
        bound.bind(loopback(7002))?;
        let _id = channel.connect(loopback(7002), &[])?;
        expect_rejected(&channel, reason::INVALID_SERVICE_ID)?;
        Ok(())
    });
}

#[test]
fn a_rejection_brings_its_private_data() {
    in_world(|| {
        let (near, far) = (Channel::new()?, Channel::new()?);
        let _listener = far.listen(loopback(7003), 1)?;
        let _id = near.connect(loopback(7003), b"please")?;
        let request = far.expect(kind::CONNECT_REQUEST)?;
        ensure!(request.private_data.starts_with(b"please\0"), "{:?}", request.private_data);
        request.id.context("no id")?.reject(b"no room")?;
        let data = expect_rejected(&near, reason::CONSUMER_DEFINED)?;
        ensure!(data.len() == REJ_DATA && data.starts_with(b"no room\0"), "{data:?}");
        Ok(())
    });
}

#[test]
fn a_listener_that_goes_rejects_what_waits() {
    in_world(|| {
        let (near, far) = (Channel::new()?, Channel::new()?);
        let listener = far.listen(loopback(7004), 1)?;
        let _id = near.connect(loopback(7004), &[])?;
        // The request is there, but has not been taken.
        ensure!(urxe_tests::verbs::is_readable(far.fd(), PATIENCE), "no request");
        drop(listener);
        expect_rejected(&near, reason::CONSUMER_DEFINED)?;
        Ok(())
    });
}

#[test]
fn both_ends_hear_of_the_end() {
    in_world(|| {
        let (near, far) = (Channel::new()?, Channel::new()?);
        let _listener = far.listen(loopback(7005), 1)?;
        let client = near.connect(loopback(7005), &[])?;
        let server = far.expect(kind::CONNECT_REQUEST)?.id.context("no id")?;
        server.accept()?;
        near.expect(kind::CONNECT_RESPONSE)?;
        client.establish()?;
        far.expect(kind::ESTABLISHED)?;
        server.disconnect()?;
        near.expect(kind::DISCONNECTED)?;
        client.disconnect()?;
        far.expect(kind::DISCONNECTED)?;
        Ok(())
    });
}

/// A wait like the kernel's, which may be left by a thread that is cancelled.
#[test]
fn a_thread_that_waits_for_events_can_be_cancelled() {
    in_world(|| {
        let channel = Channel::new()?;
        for _ in 0..3 {
            channel.wait_and_be_cancelled()?;
        }
        // The channel works as before.
        let _listener = channel.listen(loopback(7011), 1)?;
        let _id = channel.connect(loopback(7011), &[])?;
        channel.expect(kind::CONNECT_REQUEST)?.id.context("no id")?.reject(&[])?;
        expect_rejected(&channel, reason::CONSUMER_DEFINED)?;
        Ok(())
    });
}

/// A thread that asks a moment too late, of a channel whose memory may be another's: rping's does.
#[test]
fn a_thread_that_asks_while_another_closes_the_channel_hears_of_it_late() {
    in_world(|| {
        let channel = Channel::new()?;
        let fd = channel.fd();
        drop(channel);
        // Who closed it hears of it at once.
        ensure!(ask_of_what_is_closed(fd).is_err_and(|errno| errno.0 == libc::EBADF), "the closing thread");
        let others = [fd, -1].map(|fd| {
            std::thread::spawn(move || {
                let asked = Instant::now();
                (ask_of_what_is_closed(fd), asked.elapsed())
            })
        });
        for other in others {
            let (said, after) = other.join().expect("no panic");
            ensure!(after > Duration::from_millis(300), "another thread, after {after:?}");
            ensure!(said.as_ref().is_err_and(|errno| errno.0 == libc::EBADF), "{said:?}");
        }
        Ok(())
    });
}

/// librdmacm knows whether the kernel does by binding to its wildcard; if not, it refuses these addresses itself.
#[test]
fn af_ib_is_known() {
    in_world(|| {
        let channel = Channel::new()?;
        let id = channel.id()?;
        id.bind_gid([0; 16])?;
        let refused =
            [id.bind_gid([0; 16]), id.bind(loopback(7010)), id.listen(1)].map(|result| result.err().map(|e| e.0));
        ensure!(refused == [Some(libc::EINVAL); 3], "{refused:?}");
        let refused = channel.id()?.bind_gid([1; 16]).err().map(|errno| errno.0);
        ensure!(refused == Some(libc::ENODEV), "no port has this GID: {refused:?}");
        Ok(())
    });
}

#[test]
fn a_port_is_one_process_alone() {
    in_world(|| {
        let mut other = Child::fork(|parent| {
            let channel = Channel::new()?;
            let _listener = channel.listen(loopback(7006), 1)?;
            parent.send(&[1])?;
            parent.receive::<1>()?;
            Ok(())
        })?;
        other.receive::<1>()?;
        let channel = Channel::new()?;
        let refused = channel.listen(loopback(7006), 1).err().map(|errno| errno.0);
        ensure!(refused == Some(libc::EADDRINUSE), "{refused:?}");
        other.send(&[1])?;
        other.finish()?;
        let _listener = channel.listen(loopback(7006), 1)?;
        Ok(())
    });
}

/// A process that is killed takes its listeners along.
#[test]
fn a_killed_listener() {
    in_world(|| {
        let mut other = Child::fork(|parent| {
            let channel = Channel::new()?;
            let _listener = channel.listen(loopback(7007), 1)?;
            parent.send(&[1])?;
            parent.receive::<1>()?;
            Ok(())
        })?;
        other.receive::<1>()?;
        // Dropping a child kills it.
        drop(other);
        let channel = Channel::new()?;
        let _id = channel.connect(loopback(7007), &[])?;
        expect_rejected(&channel, reason::INVALID_SERVICE_ID)?;
        let _listener = channel.listen(loopback(7007), 1)?;
        Ok(())
    });
}

/// A client that is killed between its request and the answer.
#[test]
fn a_killed_requester() {
    in_world(|| {
        let mut client = Child::fork(|parent| {
            parent.receive::<1>()?;
            let channel = Channel::new()?;
            let _id = channel.connect(loopback(7008), &[])?;
            parent.receive::<1>()?;
            Ok(())
        })?;
        let channel = Channel::new()?;
        let _listener = channel.listen(loopback(7008), 1)?;
        client.send(&[1])?;
        let server = channel.expect(kind::CONNECT_REQUEST)?.id.context("no id")?;
        drop(client);
        // Its neighbour withdraws the request. Who comes later finds it rejected; who has accepted by then is told, or that
        // nobody knows the connection, by whoever has the client's place (`cma_accept` and `cma_ib_handler` of cma.c).
        match server.accept() {
            Err(error) => ensure!(error.downcast_ref() == Some(&Errno(libc::EINVAL)), "{error:?}"),
            Ok(()) => {
                let event = channel.next_within(PATIENCE)?;
                let is_told = [reason::TIMEOUT, reason::INVALID_COMM_ID].contains(&event.status);
                ensure!(event.kind == kind::REJECTED && is_told, "event {} (status {})", event.kind, event.status);
            }
        }
        Ok(())
    });
}

/// A peer that was killed while connected: the connection can be ended, and the end is told.
#[test]
fn a_killed_peer() {
    in_world(|| {
        let mut client = Child::fork(|parent| {
            parent.receive::<1>()?;
            let channel = Channel::new()?;
            let _id = channel.connected(loopback(7009))?;
            parent.receive::<1>()?;
            Ok(())
        })?;
        let channel = Channel::new()?;
        let _listener = channel.listen(loopback(7009), 1)?;
        client.send(&[1])?;
        let server = channel.accepted()?;
        drop(client);
        server.disconnect()?;
        channel.expect(kind::DISCONNECTED)?;
        Ok(())
    });
}

/// Descriptors of a process, and its resident memory in KiB.
fn held() -> Result<(usize, u64)> {
    let status = fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let resident = resident.trim().trim_end_matches("kB").trim().parse()?;
    Ok((fs::read_dir("/proc/self/fd")?.count(), resident))
}

fn names() -> Result<usize> {
    Ok(fs::read_to_string("/proc/net/unix")?.lines().filter(|line| line.contains("@urxe/")).count())
}

/// Connections that three clients make to one server, in rounds; nothing may grow from one round to the next.
fn in_a_loop(rounds: u64, connections: u64) -> Result<()> {
    const CLIENTS: u64 = 3;
    // KiB that an allocator may keep for later. That of AddressSanitizer keeps 256 MiB of what was freed, and its shadow.
    let slack = if std::env::var_os("URXE_SANITIZER_RUNTIME").is_some() { 320 << 10 } else { 4096 };
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Child::fork(|parent| {
            parent.receive::<1>()?;
            let channel = Channel::new()?;
            let mut first = None;
            for _ in 0..rounds {
                for _ in 0..connections {
                    let id = channel.connected(loopback(7010))?;
                    id.disconnect()?;
                    channel.expect(kind::DISCONNECTED)?;
                }
                // The names of connections rest for a second.
                std::thread::sleep(Duration::from_millis(1200));
                let (fds, memory) = *first.get_or_insert(held()?);
                wait_until("no more is held than after the first round", || {
                    let now = held()?;
                    Ok(now.0 <= fds && now.1 <= memory + slack)
                })
                .with_context(|| format!("{:?}, after the first round {first:?}", held()))?;
                parent.send(&[1])?;
                parent.receive::<1>()?;
            }
            Ok(())
        })?);
    }
    let channel = Channel::new()?;
    let _listener = channel.listen(loopback(7010), 64)?;
    for client in &mut clients {
        client.send(&[1])?;
    }
    let mut first = None;
    for _ in 0..rounds {
        let mut open = std::collections::HashMap::new();
        let mut ended = 0;
        while ended < CLIENTS * connections {
            let event = channel.next_within(PATIENCE)?;
            match event.kind {
                kind::CONNECT_REQUEST => {
                    let id = event.id.context("no id")?;
                    id.accept()?;
                    open.insert(id.address(), id);
                }
                kind::ESTABLISHED => {}
                kind::DISCONNECTED => {
                    let id = open.remove(&event.about).context("an end without beginning")?;
                    id.disconnect()?;
                    ended += 1;
                }
                other => anyhow::bail!("event {other} (status {})", event.status),
            }
        }
        for client in &mut clients {
            client.receive::<1>()?;
        }
        std::thread::sleep(Duration::from_millis(1200));
        let ((fds, memory), named) = *first.get_or_insert((held()?, names()?));
        wait_until("no more is held than after the first round", || {
            let now = held()?;
            Ok(now.0 <= fds && now.1 <= memory + slack && names()? <= named)
        })
        .with_context(|| format!("{:?} and {:?} names, after the first round {first:?}", held(), names()))?;
        for client in &mut clients {
            client.send(&[1])?;
        }
    }
    clients.into_iter().try_for_each(Child::finish)
}

#[test]
fn connections_in_a_loop_leave_nothing() {
    in_world(|| in_a_loop(3, 30));
}

#[test]
#[ignore = "1000 connections: make cm"]
fn a_thousand_connections_in_a_loop_leave_nothing() {
    in_world(|| in_a_loop(4, 84));
}

/// `cma_alloc_any_port` of the kernel's cma.c takes ports from the range that the administrator chose, until there are none.
#[test]
fn port_zero_takes_any_port_of_the_local_range() {
    in_world_with(
        |world| world.host().run("sh", &["-c", "echo 40000 40003 > /proc/sys/net/ipv4/ip_local_port_range"]),
        || {
            let channel = Channel::new()?;
            let bind = || -> Result<Id, Errno> {
                let id = channel.id()?;
                id.bind(loopback(0))?;
                Ok(id)
            };
            let mut ids = (0..4).map(|_| bind()).collect::<Result<Vec<_>, _>>()?;
            let mut ports: Vec<u16> = ids.iter().map(Id::port).collect();
            ports.sort_unstable();
            ensure!(ports == [40000, 40001, 40002, 40003], "{ports:?}");
            ensure!(bind().err() == Some(Errno(libc::EADDRNOTAVAIL)), "there is a fifth");
            let gone = ids.pop().context("four ids")?;
            let free = gone.port();
            drop(gone);
            ensure!(bind()?.port() == free, "another port than the one that is free");
            Ok(())
        },
    );
}
