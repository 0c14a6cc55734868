//! The Wireshark profile of `packaging/wireshark`, by tshark.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::verbs::{Op, Options, Pair, SendWr, Status};
use urxe_tests::{PingPong, World, dissect, in_world_with};

const PROFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/wireshark/urxe");

/// Names and filters.
type Filters = Vec<(String, String)>;

/// Filters of the colours, and of the buttons.
fn filters() -> Result<(Filters, Filters)> {
    let read = |name: &str| std::fs::read_to_string(Path::new(PROFILE).join(name));
    let lines = |text: String| -> Vec<String> {
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
    };
    let mut colours = Vec::new();
    for line in lines(read("colorfilters")?) {
        let [_, name, filter, rest] = line.split('@').collect::<Vec<_>>()[..] else {
            anyhow::bail!("no colour: {line}");
        };
        let numbers = rest.split(['[', ']', ',']).filter(|number| !number.is_empty());
        let numbers: Vec<u16> = numbers.map(str::parse).collect::<Result<_, _>>()?;
        ensure!(numbers.len() == 6, "background and foreground, red, green and blue: {line}");
        colours.push((name.to_owned(), filter.to_owned()));
    }
    let mut buttons = Vec::new();
    for line in lines(read("dfilter_buttons")?) {
        let inner = line.strip_prefix("\"TRUE\",\"").and_then(|line| line.strip_suffix('"')).context("no button")?;
        let [label, filter, _] = inner.split("\",\"").collect::<Vec<_>>()[..] else {
            anyhow::bail!("no button: {line}");
        };
        buttons.push((label.to_owned(), filter.replace("\\x22", "\"")));
    }
    Ok((colours, buttons))
}

/// Runs tshark with the profile.
fn tshark(home: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("tshark").env("WIRESHARK_CONFIG_DIR", home).args(["-C", "urxe"]).args(args).output();
    let output = output.context("starting tshark (missing? make setup)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let complaint = said.lines().find(|line| !line.starts_with("Running as user"));
    ensure!(output.status.success() && complaint.is_none(), "{args:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// A folder for Wireshark with the profile in it.
fn installed(dir: &Path) -> Result<std::path::PathBuf> {
    let (home, profile) = (dir.join("wireshark"), dir.join("wireshark/profiles/urxe"));
    std::fs::create_dir_all(&profile)?;
    for entry in std::fs::read_dir(PROFILE)? {
        let entry = entry?;
        std::fs::copy(entry.path(), profile.join(entry.file_name()))?;
    }
    Ok(home)
}

/// A lost ACK, a retry, a refusal, requests and responses of each kind.
fn exchange() -> Result<()> {
    let Pair { near, far } = &Pair::new(&Options { timeout: 8, ..Options::default() })?;
    let (local, remote) = (near.region(8192)?, far.region(4096)?);
    let request = |op, len| SendWr::new(op, &[local.sge(0, len)]);
    ensure!(near.complete(&request(Op::Write(remote.at(0)), 4096))?.status == Status::SUCCESS);
    ensure!(near.complete(&request(Op::Read(remote.at(0)), 4096))?.status == Status::SUCCESS);
    ensure!(near.complete(&request(Op::Write(remote.at(4000)), 100))?.status == Status::REM_ACCESS_ERR);
    Ok(())
}

fn prepare(world: &World) -> Result<()> {
    world.host().set_env("URXE_PCAP", world.dir().join("it.pcapng").to_str().unwrap_or_default());
    world.host().set_env("URXE_FAULTS", "drop,opcode=ACK,dir=rx,nth=1");
    Ok(())
}

#[test]
fn every_filter_compiles_and_colours_are_given() {
    in_world_with(prepare, || {
        exchange()?;
        let file = std::env::var("URXE_PCAP")?;
        let home = installed(Path::new(&file).parent().context("a folder")?)?;
        let (colours, buttons) = filters()?;
        ensure!(colours.len() > 10 && buttons.len() > 2, "{colours:?} {buttons:?}");
        for (name, filter) in colours.iter().chain(&buttons) {
            tshark(&home, &["-r", &file, "-Y", filter]).with_context(|| name.clone())?;
        }
        let shown = tshark(&home, &["--color", "-r", &file, "-T", "fields", "-e", "frame.coloring_rule.name"])?;
        let shown: BTreeSet<&str> = shown.lines().collect();
        for name in ["lost (URXE_FAULTS)", "sent again", "NAK", "WRITE", "READ", "READ response", "ACK"] {
            ensure!(shown.contains(name), "nothing is coloured as {name}: {shown:?}");
        }
        ensure!(!shown.contains(""), "every packet has a colour: {shown:?}");
        // Columns: the interface, which names the process, and what urxe says.
        let rows = tshark(&home, &["-r", &file])?;
        ensure!(rows.contains("] urxe0") && rows.contains("URXE_FAULTS: dropped"), "{rows}");
        Ok(())
    });
}

/// Both ends of a host capture what they send and receive: of each packet there are two, of which the button shows one. Direction and
/// interface say whose each is.
#[test]
fn a_packet_between_two_processes_is_shown_once() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    host.set_env("URXE_PCAP", world.dir().join("end-%p.pcapng").to_str().context("a path")?);
    PingPong { size: 3000, iters: 5, ..PingPong::default() }.run(host, host)?;
    let files: Vec<String> = std::fs::read_dir(world.dir())?
        .filter_map(|entry| Some(entry.ok()?.path().to_str()?.to_owned()))
        .filter(|path| path.ends_with(".pcapng"))
        .collect();
    ensure!(files.len() == 2, "{files:?}");
    let both = world.dir().join("both");
    let both_name = both.to_str().context("a path")?;
    host.run("mergecap", &[&["-w", both_name], &files.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat())?;

    let (_, buttons) = filters()?;
    let (_, once) = buttons.iter().find(|(label, _)| label == "once").context("no button")?;
    let fields = ["infiniband.bth.destqp", "infiniband.bth.opcode", "infiniband.bth.psn"];
    let count = |filter: &str| -> Result<BTreeMap<String, usize>> {
        let mut args = vec!["-r", both_name, "-Y", filter, "-T", "fields"];
        args.extend(fields.iter().flat_map(|field| ["-e", field]));
        let mut counted = BTreeMap::new();
        for line in host.run("tshark", &args)?.stdout.lines() {
            *counted.entry(line.to_owned()).or_default() += 1;
        }
        Ok(counted)
    };
    let (shown, received) = (count(once)?, count("frame.packet_flags_direction == 1")?);
    let all = dissect(host, &both, &["frame.interface_name", "frame.packet_flags_direction", "infiniband.bth.psn"])?;
    ensure!(all.len() == shown.values().sum::<usize>() + received.values().sum::<usize>(), "{shown:?} {received:?}");
    // Every packet that arrived is shown, as often as it was sent.
    for (packet, times) in &received {
        ensure!(shown.get(packet).is_some_and(|sent| sent >= times), "{packet}: {shown:?}");
    }
    let interfaces: BTreeSet<_> = all.iter().map(|row| (&row[0], &row[1])).collect();
    ensure!(interfaces.len() == 4, "two processes, each in two directions: {interfaces:?}");
    Ok(())
}
