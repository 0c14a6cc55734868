//! `urxe status`: counters of programs at work.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use urxe_tests::artifacts::urxe;
use urxe_tests::verbs::{Op, Options, Pair, RecvWr, SendWr, Status};
use urxe_tests::{World, in_world, in_world_with, own_status, wait_until};

#[test]
fn counters_of_a_program_at_work() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, remote) = (near.region(4096)?, far.region(4096)?);
        let write = |offset| SendWr::new(Op::Write(remote.at(offset)), &[local.sge(0, 1024)]);
        for _ in 0..10 {
            ensure!(near.complete(&write(0))?.status == Status::SUCCESS);
        }
        ensure!(near.complete(&write(4000))?.status == Status::REM_ACCESS_ERR);
        let pid = std::process::id();
        let value = |text: &str, name: &str| -> Result<u64> {
            let start = format!("urxe_{name}_total{{device=\"urxe0\",pid=\"{pid}\",");
            let line = text.lines().find(|line| line.starts_with(&start));
            let line = line.with_context(|| format!("no {name} of {pid}:\n{text}"))?;
            Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
        };
        let text = own_status(&["--metrics"])?;
        ensure!(value(&text, "rcvd_nak_remote_access")? == 1, "{text}");
        ensure!(value(&text, "sent_nak_remote_access")? == 1 && value(&text, "icrc_err")? == 0, "{text}");
        ensure!(value(&text, "tx_packets")? >= 22 && value(&text, "rx_packets")? >= 22, "{text}");
        ensure!(value(&text, "tx_bytes")? > 10 * 1024, "{text}");
        ensure!(text.lines().any(|line| line == "# TYPE urxe_icrc_err_total counter"), "{text}");
        let people = own_status(&[])?;
        ensure!(
            people.contains(&pid.to_string()) && people.contains("urxe0") && people.contains("sent_nak_remote_access"),
            "{people}"
        );
        ensure!(!people.contains("icrc_err") && own_status(&["--all"])?.contains("icrc_err"), "{people}");
        Ok(())
    });
}

/// Counters of one queue pair.
fn counted(qpn: u32) -> Result<Value> {
    let devices: Value = serde_json::from_str(&own_status(&["--json"])?)?;
    let all = devices.as_array().into_iter().flatten();
    let mut qps = all.flat_map(|device| device["qps"].as_array().into_iter().flatten());
    let qp = qps.find(|qp| qp["qpn"] == qpn).with_context(|| format!("no QP {qpn}"))?;
    Ok(qp.clone())
}

/// Each queue pair counts for itself: two pairs of which one has trouble.
#[test]
fn counters_of_each_queue_pair() {
    in_world_with(
        |world| {
            world.host().set_env("URXE_FAULTS", "dup,opcode=WRITE,dir=tx,nth=2; corrupt,opcode=WRITE,dir=rx,nth=5");
            Ok(())
        },
        || {
            let options = Options { timeout: 10, ..Options::default() };
            let (busy, calm) = (Pair::new(&options)?, Pair::new(&options)?);
            let (local, remote) = (busy.near.region(4096)?, busy.far.region(4096)?);
            let write = |offset| SendWr::new(Op::Write(remote.at(offset)), &[local.sge(0, 1000)]);
            for _ in 0..10 {
                ensure!(busy.near.complete(&write(0))?.status == Status::SUCCESS);
            }
            // No receive is posted: RNR NAKs, until there is one.
            busy.near.qp.post_send(&SendWr::new(Op::Send, &[]))?;
            let (near, far) = (busy.near.qp.number(), busy.far.qp.number());
            wait_until("it is not ready", || Ok(counted(near)?["counters"]["rcvd_rnr_err"].as_u64() > Some(0)))?;
            busy.far.qp.post_recv(&RecvWr::new(1, &[]))?;
            ensure!(busy.near.send_cq.next()?.status == Status::SUCCESS);
            ensure!(busy.near.complete(&write(4000))?.status == Status::REM_ACCESS_ERR);

            let at = |qp: &Value, name: &str| qp["counters"][name].as_u64().unwrap_or_default();
            let (near, far) = (counted(near)?, counted(far)?);
            for (qp, name, least) in [
                (&near, "tx_packets", 12),
                (&near, "tx_bytes", 10_000),
                (&near, "rx_packets", 11),
                (&near, "rcvd_rnr_err", 1),
                (&near, "rcvd_nak_remote_access", 1),
                (&far, "rx_packets", 12),
                (&far, "rx_bytes", 10_000),
                (&far, "send_rnr_err", 1),
                (&far, "sent_nak_remote_access", 1),
                (&far, "duplicate_request", 1),
                (&far, "icrc_err", 1),
            ] {
                ensure!(at(qp, name) >= least, "{name} is less than {least}: {qp}");
            }
            ensure!(near["window"].as_u64() >= Some(2), "{near}");
            // The last request was refused, so that it is still expected.
            let refused = far["rq_psn"].as_u64().context("no rq_psn")?;
            ensure!(near["sq_psn"].as_u64() == Some(refused + 1), "{near} {far}");
            let went_back = at(&near, "completer_retry_err") + at(&near, "ack_timeout");
            ensure!(went_back >= 1, "{near}");
            for end in [&calm.near, &calm.far] {
                let qp = counted(end.qp.number())?;
                ensure!(at(&qp, "tx_packets") == 0 && at(&qp, "icrc_err") == 0, "{qp}");
            }
            let metrics = own_status(&["--metrics"])?;
            let row = format!("qpn=\"{}\",type=\"RC\"}} ", busy.far.qp.number());
            let mine = |line: &str, name: &str| line.starts_with(&format!("urxe_qp_{name}{{")) && line.contains(&row);
            for name in ["duplicate_request_total", "rx_bytes_total", "window"] {
                ensure!(metrics.lines().any(|line| mine(line, name)), "no {name}: {metrics}");
            }
            Ok(())
        },
    );
}

/// A device that is closed is not shown any more.
#[test]
fn nothing_is_left_behind() -> Result<()> {
    let world = World::new()?;
    let ended = world.host().run("ibv_devinfo", &["-d", "urxe0"])?;
    ensure!(ended.stdout.contains("PORT_ACTIVE"));
    let shown = world.host().run(urxe()?, &["status"])?;
    ensure!(!shown.stdout.contains("ibv_devinfo"), "{shown}");
    Ok(())
}
