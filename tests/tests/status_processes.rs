//! `urxe status`: who uses urxe, and how.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{TIMEOUT, World, artifacts, copy_program, devices, wait_for_devices, wait_for_listener, wait_until};

#[test]
fn nobody() -> Result<()> {
    let world = World::bare()?;
    ensure!(devices(world.host())?.is_empty());
    let said = world.host().run(artifacts::urxe()?, &["status"])?;
    ensure!(said.stdout == "no process of this network uses urxe\n", "{said}");
    Ok(())
}

#[test]
fn processes_devices_queue_pairs() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let port = host.next_port();
    let port_word = port.to_string();
    // A connection that nothing is said over once it is made: so that there is time to look.
    let common = ["-d", "urxe0", "-g", "1", "-e", "-p", &port_word, "-n", "100000000"];
    let server = wait_for_listener(host, host.spawn("ibv_rc_pingpong", &common)?, port)?;
    let waiting = wait_for_devices(host, "the device answers", |devices| Ok(!devices.is_empty()))?;
    let [device] = &waiting[..] else { anyhow::bail!("not one: {waiting:?}") };
    ensure!(device["pid"] == server.pid() && device["program"] == "ibv_rc_pingpong", "{device}");
    ensure!(device["device"] == "urxe0" && device["netdev"] == "lo", "{device}");
    ensure!(device["mrs"]["count"] == 1 && device["mrs"]["bytes"].as_u64() >= Some(4096), "{device}");
    ensure!(device["qps"][0]["state"] == "INIT" && device["qps"][0]["peer"].is_null(), "{device}");

    let client = host.spawn("ibv_rc_pingpong", &[&common[..], &["127.0.0.1"]].concat())?;
    let busy =
        |device: &Value| device["qps"][0]["state"] == "RTS" && device["counters"]["rx_packets"].as_u64() > Some(10);
    let both = wait_for_devices(host, "packets are counted at both ends", |devices| {
        Ok(devices.len() == 2 && devices.iter().all(busy))
    })?;
    for (one, other) in [(0, 1), (1, 0)] {
        let (one, other) = (&both[one]["qps"][0], &both[other]["qps"][0]);
        ensure!(one["type"] == "RC" && one["peer"]["address"] == "127.0.0.1", "{one}");
        ensure!(one["peer"]["qpn"] == other["qpn"], "{one} {other}");
    }
    wait_until("both are in the table", || {
        let table = host.run(artifacts::urxe()?, &["status"])?.stdout;
        Ok(table.matches("ibv_rc_pingpong").count() == 2 && table.contains("RC       RTS"))
    })?;
    for process in [server, client] {
        process.signal(libc::SIGKILL)?;
        process.finish(TIMEOUT)?;
    }
    ensure!(devices(host)?.is_empty(), "somebody is still there");
    Ok(())
}

/// Run by `make test` where it may; who decides is `is_trusted` of `provider/src/status`, whose test always runs.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn other_users_see_that_there_is_something() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let port = host.next_port();
    let server = host.spawn("ibv_rc_pingpong", &["-d", "urxe0", "-g", "1", "-p", &port.to_string()])?;
    let _server = wait_for_listener(host, server, port)?;
    std::fs::set_permissions(world.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let urxe = world.dir().join("urxe");
    copy_program(artifacts::urxe()?, &urxe)?;
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", urxe, "status"];
    let said = host.run("setpriv", &words)?;
    ensure!(said.stdout.contains("1 more: of other users") && !said.stdout.contains("pingpong"), "{said}");
    Ok(())
}

/// A stranger may listen at a name like a device's. Who is believed about what decide `trust` and `numbers_in` of
/// `diag/status/src/ask.rs`, whose tests always run.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn look_alikes_speak_for_nobody_else() -> Result<()> {
    const LISTEN: &str = "import os, socket
names = {'/forged': 1, '/honest': os.getpid()}
listeners = {name: socket.socket(socket.AF_UNIX) for name in names}
for name, listener in listeners.items():
    listener.bind(f'\\0urxe/1/status/{os.getpid()}{name}')
    listener.listen()
import selectors
ready = selectors.DefaultSelector()
for name, listener in listeners.items():
    ready.register(listener, selectors.EVENT_READ, name)
while True:
    for key, _ in ready.select():
        stream, _ = key.fileobj.accept()
        report = '{\"pid\":%d,\"program\":\"%s\",\"device\":\"urxe0\",\"netdev\":\"lo\",\"counters\":{},\"qps\":[]}'
        # Who does not believe it has hung up.
        try: stream.sendall((report % (names[key.data], key.data)).encode())
        except OSError: pass
        stream.close()";
    let world = World::bare()?;
    let host = world.host();
    std::fs::set_permissions(world.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let urxe = world.dir().join("urxe");
    copy_program(artifacts::urxe()?, &urxe)?;
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let as_user = |user: &str| [format!("--reuid={user}"), "--regid=65534".into(), "--clear-groups".into()];
    let user = as_user("65534");
    let words: Vec<&str> = user.iter().map(String::as_str).chain(["/usr/bin/python3", "-c", LISTEN]).collect();
    let look_alike = host.spawn("setpriv", &words)?;
    wait_until("it listens", || Ok(host.run("cat", &["/proc/net/unix"])?.stdout.contains("/honest")))?;
    for (user, seen, others) in [("0", &["/honest"][..], 1), ("65533", &[], 2), ("65534", &["/forged", "/honest"], 0)] {
        let words = as_user(user);
        let words: Vec<&str> = words.iter().map(String::as_str).chain([urxe, "status"]).collect();
        let said = host.run("setpriv", &words)?.stdout;
        for name in ["/forged", "/honest"] {
            ensure!(said.contains(name) == seen.contains(&name), "{user} and {name}: {said}");
        }
        ensure!(said.contains(&format!("{others} more: ")) == (others > 0), "{user}: {said}");
    }
    look_alike.signal(libc::SIGKILL)?;
    look_alike.finish(TIMEOUT)?;
    Ok(())
}

/// Sockets of one user that sort first and say a little now and then do not use up the time for another user's.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn slow_sockets_of_one_user_do_not_hide_those_of_another() -> Result<()> {
    const SLOW: &str = "import socket, threading
def trickle(stream):
    while True:
        try: stream.sendall(b' ')
        except OSError: return
        if done.wait(0.1): return
done = threading.Event()
def serve(name):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind('\\0urxe/1/status/0/%d' % name)
    listener.listen(64)
    print('go', flush=True)
    while True:
        threading.Thread(target=trickle, args=(listener.accept()[0],)).start()
for name in range(8): threading.Thread(target=serve, args=(name,)).start()";
    const HONEST: &str = "import os, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind('\\0urxe/1/status/%d/1' % os.getpid())
listener.listen(64)
print('go', flush=True)
while True:
    stream, _ = listener.accept()
    report = '{\"pid\":%d,\"program\":\"honest\",\"device\":\"urxe0\",\"netdev\":\"lo\",\"counters\":{},\"qps\":[]}'
    try: stream.sendall((report % os.getpid()).encode())
    except OSError: pass
    stream.close()";
    let world = World::bare()?;
    let host = world.host();
    let start = |user: &str, program: &str, ready: usize| -> Result<_> {
        let user = format!("--reuid={user}");
        let words = [&user, "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", program];
        let process = host.spawn("setpriv", &words)?;
        wait_until("it listens", || Ok(process.stdout_so_far().matches("go").count() == ready))?;
        Ok(process)
    };
    // Users come in the order of their numbers.
    let (slow, honest) = (start("65532", SLOW, 8)?, start("65533", HONEST, 1)?);
    let found = devices(host)?;
    ensure!(found.len() == 1 && found[0]["program"] == "honest", "{found:?}");
    for process in [slow, honest] {
        process.signal(libc::SIGKILL)?;
        process.finish(TIMEOUT)?;
    }
    Ok(())
}

#[test]
fn watch() -> Result<()> {
    let world = World::bare()?;
    let watching = world.host().spawn(artifacts::urxe()?, &["status", "--watch", "0.05"])?;
    wait_until("it has looked more than once", || Ok(watching.stdout_so_far().lines().count() > 1))
}
