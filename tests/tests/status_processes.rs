//! `urxe status`: who uses urxe, and how.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use urxe_tests::{Host, TIMEOUT, World, artifacts, wait_for_listener, wait_until};

fn json(host: &Host) -> Result<Vec<Value>> {
    let said = host.run(artifacts::urxe()?, &["status", "--json"])?;
    Ok(serde_json::from_str::<Value>(&said.stdout)?.as_array().context("not an array")?.clone())
}

#[test]
fn nobody() -> Result<()> {
    let world = World::bare()?;
    ensure!(json(world.host())?.is_empty());
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
    let waiting = json(host)?;
    let [device] = &waiting[..] else { anyhow::bail!("not one: {waiting:?}") };
    ensure!(device["pid"] == server.pid() && device["program"] == "ibv_rc_pingpong", "{device}");
    ensure!(device["device"] == "urxe0" && device["netdev"] == "lo", "{device}");
    ensure!(device["mrs"]["count"] == 1 && device["mrs"]["bytes"].as_u64() >= Some(4096), "{device}");
    ensure!(device["qps"][0]["state"] == "INIT" && device["qps"][0]["peer"].is_null(), "{device}");

    let client = host.spawn("ibv_rc_pingpong", &[&common[..], &["127.0.0.1"]].concat())?;
    let mut both = Vec::new();
    wait_until("packets are counted at both ends", || {
        both = json(host)?;
        let busy =
            |device: &Value| device["qps"][0]["state"] == "RTS" && device["counters"]["rx_packets"].as_u64() > Some(10);
        Ok(both.len() == 2 && both.iter().all(busy))
    })?;
    for (one, other) in [(0, 1), (1, 0)] {
        let (one, other) = (&both[one]["qps"][0], &both[other]["qps"][0]);
        ensure!(one["type"] == "RC" && one["peer"]["address"] == "127.0.0.1", "{one}");
        ensure!(one["peer"]["qpn"] == other["qpn"], "{one} {other}");
    }
    let table = host.run(artifacts::urxe()?, &["status"])?;
    ensure!(table.stdout.matches("ibv_rc_pingpong").count() == 2 && table.stdout.contains("RC       RTS"), "{table}");
    for process in [server, client] {
        process.signal(libc::SIGKILL)?;
        process.finish(TIMEOUT)?;
    }
    ensure!(json(host)?.is_empty(), "somebody is still there");
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
    std::fs::copy(artifacts::urxe()?, &urxe)?;
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", urxe, "status"];
    let said = host.run("setpriv", &words)?;
    ensure!(said.stdout.contains("1 more: of other users") && !said.stdout.contains("pingpong"), "{said}");
    Ok(())
}

#[test]
fn watch() -> Result<()> {
    let world = World::bare()?;
    let watching = world.host().spawn(artifacts::urxe()?, &["status", "--watch", "0.05"])?;
    std::thread::sleep(std::time::Duration::from_millis(700));
    watching.signal(libc::SIGTERM)?;
    let said = watching.finish(TIMEOUT)?;
    ensure!(said.stdout.lines().count() > 1, "{said}");
    Ok(())
}
