//! Each way of docs/guide/fuzzing.md finds the mistake that is planted in docs/guide/fuzzing/kv.c, with a seed, within a number of
//! executions. `--nocapture` prints how many it took, and how long.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use urxe_pcapng::Captured;
use urxe_tests::{Finished, Launcher, Process, TIMEOUT, wait_until};
use urxe_wire::Qpn;
use urxe_wire::opcode::Role;

/// Report of AddressSanitizer about the planted mistake.
const FOUND: &str = "AddressSanitizer: heap-buffer-overflow";

/// A server that has no processor for two seconds has not ended.
const LATE: [&str; 2] = ["--timeout", "20000"];

/// Builds a program of the guide's folder.
fn built(folder: &Path, name: &str, sources: &[&str], options: &[&str]) -> Result<String> {
    built_by("gcc", folder, name, sources, options)
}

fn built_by(compiler: &str, folder: &Path, name: &str, sources: &[&str], options: &[&str]) -> Result<String> {
    let program = folder.join(name);
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/fuzzing");
    let mut command = Command::new(compiler);
    command.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]).args(options);
    command.arg("-o").arg(&program).args(sources.iter().map(|source| guide.join(source)));
    let compiled = command
        .args(["-lrdmacm", "-libverbs"])
        .output()
        .with_context(|| format!("starting {compiler} (missing? make setup)"))?;
    ensure!(compiled.status.success(), "{compiler}: {}", String::from_utf8_lossy(&compiled.stderr));
    program.into_os_string().into_string().ok().context("a path that is not UTF-8")
}

/// The server, with AddressSanitizer, when it listens.
fn server(launcher: &Launcher, options: &[&str]) -> Result<Process> {
    let program = built(launcher.world().dir(), "kv_server", &["kv_server.c", "kv.c"], &["-fsanitize=address"])?;
    let server = launcher.host().start(launcher.command(options, &[&program])?)?;
    wait_until("kv_server to listen", || Ok(server.stdout_so_far().contains("listening")))?;
    Ok(server)
}

/// Prints what a way needed; not every way counts its executions.
fn told(way: &str, began: Instant, executions: Option<u64>) {
    let seconds = began.elapsed().as_secs_f64();
    match executions {
        Some(executions) => {
            println!("| {way} | {executions} | {seconds:.1} | {:.0} |", executions as f64 / seconds);
        }
        None => println!("| {way} | | {seconds:.1} | |"),
    }
}

/// Reads the number behind a text.
fn number_behind(text: &str, before: &str) -> Result<u64> {
    let rest = text.split_once(before).with_context(|| format!("no {before:?} in {text}"))?.1.trim_start();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().with_context(|| format!("no number behind {before:?} in {text}"))
}

/// Executions of libFuzzer (`-print_final_stats=1`).
fn units(said: &Finished) -> Result<u64> {
    number_behind(&said.stderr, "stat::number_of_executed_units:")
}

/// Two well-formed messages of the server's protocol: a PUT and a GET.
fn messages() -> [(&'static str, Vec<u8>); 2] {
    let mut put = b"P\x05\0\x14alpha".to_vec();
    put.resize(128, b'v');
    [("put", put), ("get", b"G\x05\0\0alpha".to_vec())]
}

/// The server has ended because of the planted mistake.
fn found(server: Process) -> Result<()> {
    let said = server.finish(TIMEOUT)?;
    ensure!(said.stderr.contains(FOUND) && said.stderr.contains("kv_handle"), "nothing was found: {said}");
    Ok(())
}

#[test]
fn a_planted_overflow_is_found_by_mutated_packets() -> Result<()> {
    let launcher = Launcher::new()?;
    let server = server(&launcher, &["--faults", "mutate=payload,dir=rx,opcode=SEND,seed=1"])?;
    let client = built(launcher.world().dir(), "kv_client", &["kv_client.c"], &[])?;
    let began = Instant::now();
    let client = launcher.try_run(&[], &[&client, "127.0.0.1", "7471", "20000"])?;
    ensure!(!client.status.success(), "20000 requests were answered");
    // Nothing may tell the client that the server is gone: then its own alarm ends it, and it says no number.
    told("`mutate=payload`, seed 1", began, number_behind(&client.stderr, "no answer to request").ok());
    found(server)
}

/// The queue pair and its peer in one process, driven by libFuzzer.
#[test]
fn a_planted_overflow_is_found_by_the_harness() -> Result<()> {
    let launcher = Launcher::new()?;
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../packaging/include");
    let options = ["-fsanitize=fuzzer,address", include];
    let fuzzer = built_by("clang", launcher.world().dir(), "kv_fuzz", &["kv_fuzz.c", "kv.c"], &options)?;
    let dictionary = file(&launcher, "kv.dict", include_bytes!("../../docs/guide/fuzzing/kv.dict"))?;
    let (dictionary, artifacts) =
        (format!("-dict={dictionary}"), format!("-artifact_prefix={}/", launcher.tmp().display()));
    let limits = ["-max_len=128", "-seed=1", "-runs=300000", "-timeout=600", "-print_final_stats=1"];
    let began = Instant::now();
    let said = launcher.try_run(&[], &[&[fuzzer.as_str(), &dictionary], &limits[..], &[&artifacts]].concat())?;
    ensure!(said.stderr.contains(FOUND) && said.stderr.contains("kv_handle"), "nothing was found: {said}");
    told("libFuzzer, `urxe_fuzz.h`, seed 1", began, Some(units(&said)?));
    Ok(())
}

/// The harness in AFL++'s persistent mode: its fork server starts the program, which takes input after input.
#[test]
fn a_planted_overflow_is_found_by_afl() -> Result<()> {
    const DEVICE: [&str; 2] = ["--deterministic", "7"];
    let launcher = Launcher::new()?;
    let options = ["-fsanitize=fuzzer", "-fsanitize=address"];
    let fuzzer = built_by("afl-clang-fast", launcher.world().dir(), "kv_pair", &["kv_pair.c", "kv.c"], &options)?;
    let dictionary = file(&launcher, "kv.dict", include_bytes!("../../docs/guide/fuzzing/kv.dict"))?;
    let seeds = launcher.tmp().join("seeds");
    fs::create_dir(&seeds)?;
    for (name, message) in messages() {
        fs::write(seeds.join(name), message)?;
    }
    let out = launcher.tmp().join("out");
    let (seeds, folder) = (seeds.to_str(), out.to_str());
    let (seeds, folder) = seeds.zip(folder).context("a path that is not UTF-8")?;
    let variables = ["AFL_BENCH_UNTIL_CRASH", "AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES", "AFL_NO_AFFINITY", "AFL_NO_UI"];
    let variables =
        [&variables[..], &["AFL_SKIP_CPUFREQ"]].concat().iter().map(|name| format!("{name}=1")).collect::<Vec<_>>();
    // An execution may take a minute beside other programs; 300 000 of them are enough.
    let limits = ["-t", "60000", "-E", "300000", "-s", "1", "-D"];
    let mut words = vec!["env"];
    words.extend(variables.iter().map(String::as_str));
    words.push("afl-fuzz");
    words.extend(limits);
    words.extend(["-x", &dictionary, "-i", seeds, "-o", folder, "--", &fuzzer]);
    let began = Instant::now();
    let said = launcher.try_run(&DEVICE, &words)?;
    let stats = fs::read_to_string(out.join("default/fuzzer_stats")).with_context(|| said.to_string())?;
    told("AFL++, `kv_pair.c`, seed 1", began, Some(number_behind(&stats, "execs_done        :")?));
    let names = fs::read_dir(out.join("default/crashes"))?.collect::<Result<Vec<_>, _>>()?;
    let crash = names.iter().find(|entry| entry.file_name().to_string_lossy().starts_with("id:"));
    let crash = crash.with_context(|| format!("nothing was found: {said}"))?.path();
    let said = launcher.try_run(&DEVICE, &[&fuzzer, crash.to_str().context("a path that is not UTF-8")?])?;
    ensure!(said.stderr.contains(FOUND) && said.stderr.contains("kv_handle"), "another finding: {said}");
    Ok(())
}

/// Runs a subcommand of `urxe`.
fn urxe(launcher: &Launcher, words: &[&str]) -> Result<Finished> {
    let urxe = launcher.urxe();
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    launcher.host().start(launcher.plain(&[&[urxe], words].concat()))?.finish(TIMEOUT)
}

/// A file in the folder of the user's temporary files.
fn file(launcher: &Launcher, name: &str, contents: &[u8]) -> Result<String> {
    let path = launcher.tmp().join(name);
    fs::write(&path, contents)?;
    path.into_os_string().into_string().ok().context("a path that is not UTF-8")
}

#[test]
fn a_planted_overflow_is_found_by_the_generator() -> Result<()> {
    let launcher = Launcher::new()?;
    let server = server(&launcher, &[])?;
    let [put, get] = messages().map(|(name, message)| file(&launcher, name, &message));
    let (put, get) = (put?, get?);
    let saved = launcher.tmp().join("found");
    let saved = saved.to_str().context("a path that is not UTF-8")?;
    let corpus = ["--corpus", &put, "--corpus", &get, "--save", saved, "--quiet"];
    let began = Instant::now();
    let said = urxe(
        &launcher,
        &[&["inject", "--cm", "127.0.0.1:7471", LATE[0], LATE[1], "--generate", "20000", "--seed", "5"], &corpus[..]]
            .concat(),
    )?;
    ensure!(said.status.code() == Some(1) && said.stdout.contains("found: no other connection"), "{said}");
    let executions = said.stdout.split_once(" executions, ").context("no executions")?.0;
    told("`urxe inject --generate`, seed 5", began, Some(executions.parse()?));
    found(server)?;
    // What was saved finds it again.
    let script = fs::read_to_string(saved)?.replace("expect ack\n", "expect ack within=20s\n");
    fs::write(saved, script)?;
    let server = self::server(&launcher, &[])?;
    let said = urxe(&launcher, &["inject", "--cm", "127.0.0.1:7471", LATE[0], LATE[1], "--quiet", "--script", saved])?;
    ensure!(said.status.code() == Some(1) && said.stderr.contains("was expected"), "{said}");
    found(server)
}

#[test]
fn a_planted_overflow_is_found_by_a_replay() -> Result<()> {
    let launcher = Launcher::new()?;
    let server = server(&launcher, &[])?;
    let client = built(launcher.world().dir(), "kv_client", &["kv_client.c"], &[])?;
    let capture = launcher.tmp().join("client.pcapng");
    let capture = capture.to_str().context("a path that is not UTF-8")?;
    launcher.try_run(&["--pcap", capture], &[&client, "127.0.0.1", "7471", "6"])?.success()?;
    let said = urxe(&launcher, &["replay", capture, "--cm", "127.0.0.1:7471", LATE[0], LATE[1]])?.success()?;
    // The store has the key by now that the first GET did not find then.
    ensure!(said.stdout.contains("with another payload from byte 0"), "{said}");
    ensure!(said.stdout.contains("6 packets sent, rounds: 1, differences from the capture: 1\n"), "{said}");
    let dictionary = file(&launcher, "kv.dict", include_bytes!("../../docs/guide/fuzzing/kv.dict"))?;
    let mutate = ["--mutate", "3000", "--seed", "3", "--dict", &dictionary, "--quiet"];
    let began = Instant::now();
    let said = urxe(&launcher, &[&["replay", capture, "--cm", "127.0.0.1:7471"], &mutate[..]].concat())?;
    ensure!(said.status.code() == Some(1) && said.stdout.contains("found: no other connection"), "{said}");
    told("`urxe replay --mutate`, seed 3", began, Some(number_behind(&said.stdout, "rounds:")?));
    found(server)
}

#[test]
fn scripts_speak_to_ping_pongs_and_to_rping() -> Result<()> {
    let launcher = Launcher::new()?;
    // IPv4 is the second GID of lo.
    let play = |options: &[&str], script: &str, program: &[&str], code: i32| -> Result<Finished> {
        let program = launcher.host().start(launcher.command(&[], program)?)?;
        let script = file(&launcher, "script", script.as_bytes())?;
        let inject = || urxe(&launcher, &[&["inject"], options, &["--script", &script]].concat());
        let mut said = inject()?;
        wait_until("the program to listen", || {
            let early = ["Connection refused", "rejects", "by rdma_cm"].iter().any(|why| said.stderr.contains(why));
            if early {
                said = inject()?;
            }
            Ok(!early)
        })?;
        drop(program);
        ensure!(said.status.code() == Some(code), "{said}");
        Ok(said)
    };
    let message = "send \"x\"*1024\nexpect ack within=60s\n";
    let rc = play(&["--pingpong", "127.0.0.1"], message, &["ibv_rc_pingpong", "-g", "1", "-s", "1024"], 0)?;
    ensure!(rc.stdout.contains("> RC SEND Only QP=") && rc.stdout.contains("< RC Acknowledge QP="), "{rc}");
    // A First packet must be full: NAK Invalid Request (IBA 9.7.4.1.6).
    let short = "SEND_FIRST \"short\"\nexpect nak within=60s\n";
    let nak = play(&["--pingpong", "127.0.0.1"], short, &["ibv_rc_pingpong", "-g", "1"], 0)?;
    ensure!(nak.stdout.contains("Nak Invalid Request"), "{nak}");
    let wrong = "send icrc=bad\n";
    let mistake = play(&["--pingpong", "127.0.0.1"], wrong, &["true"], 1)?;
    ensure!(mistake.stderr.contains("line 1, column 6: expected \"text\""), "{mistake}");
    let ud = play(
        &["--pingpong", "127.0.0.1", "--transport", "ud"],
        "send \"x\"*1024\nexpect SEND_ONLY within=60s\n",
        &["ibv_ud_pingpong", "-g", "1"],
        0,
    )?;
    ensure!(ud.stdout.contains("Q_Key=0x11111111"), "{ud}");
    // The server of rping reads from the address and by the key in the message.
    let rping = "send be64:0x5000 be32:0x1234 be32:64\nexpect ack within=60s\nexpect READ_REQUEST within=60s\n";
    let rping = play(&["--cm", "127.0.0.1:7174"], rping, &["rping", "-s", "-C", "1"], 0)?;
    ensure!(rping.stdout.contains("VA=0x0000000000005000 R_Key=0x00001234 DMALen=64"), "{rping}");
    // A socket over RDMA rejects requests without its own data, version 1 with 16 credits (`rs_accept` of rdma-core's rsocket.c).
    let data = ["--cm", "127.0.0.1:7471", "--private-data", "u8:1 u8:0 be16:16 zero*36"];
    play(&data, "wait 10ms\n", &["rstream", "-S", "64", "-C", "1"], 0)?;
    let wrong = ["--cm", "127.0.0.1:7471", "--private-data", "u8:1 random*3"];
    let mistake = play(&wrong, "wait 10ms\n", &["true"], 2)?;
    ensure!(mistake.stderr.contains("line 1, column 6: expected bytes that are known"), "{mistake}");
    Ok(())
}

/// Sockets over RDMA tell each other keys and addresses in private data of rdma_cm, and nowhere else.
#[test]
fn private_data_of_programs_tells_keys() -> Result<()> {
    let launcher = Launcher::new()?;
    let is_there =
        || Ok(fs::read_to_string(format!("/proc/{}/net/unix", launcher.host().pid()))?.contains("@urxe/1/service/"));
    let serve = || -> Result<Process> {
        let server = launcher.host().start(launcher.command(&[], &["rstream", "-S", "64", "-C", "4", "-I", "1"])?)?;
        wait_until("rstream to listen", is_there)?;
        Ok(server)
    };
    let capture = launcher.tmp().join("client.pcapng");
    let capture = capture.to_str().context("a path that is not UTF-8")?;
    let server = serve()?;
    let client = ["rstream", "-s", "127.0.0.1", "-S", "64", "-C", "4", "-I", "1"];
    launcher.try_run(&["--pcap", capture], &client)?.success()?;
    server.finish(TIMEOUT)?.success()?;

    // What the captured client wrote is written again, to where the new server has its memory.
    let server = serve()?;
    let said = urxe(&launcher, &["replay", capture, "--cm", "127.0.0.1:7471", LATE[0], LATE[1]])?.success()?;
    let count = |words: &str| said.stdout.lines().filter(|line| line.contains(words)).count();
    ensure!(count("> RC RDMA WRITE Only") > 0 && count(" Nak ") == 0, "{said}");
    drop(server);

    // Nor does it matter whose packet was first: that of the end that connected, or the other's.
    let server = serve()?;
    put_second_sender_first(Path::new(capture))?;
    let said = urxe(&launcher, &["replay", capture, "--cm", "127.0.0.1:7471", LATE[0], LATE[1]])?.success()?;
    let count = |words: &str| said.stdout.lines().filter(|line| line.contains(words)).count();
    ensure!(count("> RC RDMA WRITE Only") > 1 && count(" Nak ") + count("nothing comes") == 0, "{said}");
    drop(server);

    // The layout is that of `struct rs_conn_data` of rdma-core's rsocket.c.
    let _server = serve()?;
    let script = "let va=be64@24\nlet rkey=be32@32\nWRITE_ONLY va=$va rkey=$rkey \"x\"\nexpect ack within=60s\nWRITE_ONLY va=$va rkey=$rkey+1 \"x\"\nexpect nak within=60s\n";
    let script = file(&launcher, "script", script.as_bytes())?;
    let data = "u8:1 u8:0 be16:16 zero*36";
    urxe(
        &launcher,
        &["inject", "--cm", "127.0.0.1:7471", LATE[0], LATE[1], "--private-data", data, "--script", &script],
    )?
    .success()?;
    Ok(())
}

/// Changes the times of a capture: the first request to the end that connected comes before those to the other.
fn put_second_sender_first(capture: &Path) -> Result<()> {
    let packets = urxe_pcapng::read_whole(capture)?.packets;
    let is_request =
        |packet: &Captured| packet.bth.dest_qp != Qpn::GSI && packet.bth.opcode.info().role == Role::Request;
    let first = packets.iter().find(|packet| is_request(packet)).context("no request")?.bth.dest_qp;
    let second = packets.iter().position(|packet| is_request(packet) && packet.bth.dest_qp != first);
    let second = second.context("no request to the other end")?;
    let mut bytes = fs::read(capture)?;
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (mut at, mut times) = (0, Vec::new());
    while let (Some(kind), Some(length)) = (word(at), word(at + 4)) {
        // The time of an Enhanced Packet Block is behind type, length and interface.
        times.extend((kind == 6).then_some(at + 12));
        at += length as usize;
    }
    let (from, to) = (*times.first().context("no packets")?, *times.get(second).context("fewer blocks than packets")?);
    bytes.copy_within(from..from + 8, to);
    Ok(fs::write(capture, bytes)?)
}

/// The peer is the passive side.
#[test]
fn scripts_wait_for_programs() -> Result<()> {
    let launcher = Launcher::new()?;
    let urxe = launcher.urxe();
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let script = file(&launcher, "script", b"expect SEND_ONLY within=60s\nsend \"y\"*1024\nexpect ack within=60s\n")?;
    let words = [urxe, "inject", "--pingpong-listen", "18515", "--script", &script];
    let peer = launcher.host().start(launcher.plain(&words))?;
    wait_until("the peer to listen", || launcher.host().is_listening(18515))?;
    let client = ["ibv_rc_pingpong", "-g", "1", "-s", "1024", "-n", "1", "127.0.0.1"];
    let _client = launcher.host().start(launcher.command(&[], &client)?)?;
    let said = peer.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout.contains("> RC SEND Only") && said.stdout.contains("< RC Acknowledge"), "{said}");
    Ok(())
}

/// Client and server in one process, without threads and in virtual time: two runs have the same numbers and find the same input.
#[test]
fn a_planted_overflow_is_found_in_virtual_time() -> Result<()> {
    let launcher = Launcher::new()?;
    let options = ["-fsanitize=fuzzer,address"];
    let fuzzer = built_by("clang", launcher.world().dir(), "kv_pair", &["kv_pair.c", "kv.c"], &options)?;
    let dictionary = file(&launcher, "kv.dict", include_bytes!("../../docs/guide/fuzzing/kv.dict"))?;
    let (dictionary, artifacts) =
        (format!("-dict={dictionary}"), format!("-artifact_prefix={}/", launcher.tmp().display()));
    let words = [
        "env",
        "KV_VERBOSE=1",
        &fuzzer,
        &dictionary,
        "-max_len=128",
        "-seed=1",
        "-runs=300000",
        "-timeout=600",
        "-print_final_stats=1",
        &artifacts,
    ];
    let run = || {
        let began = Instant::now();
        let said = launcher.try_run(&["--deterministic", "7"], &words)?;
        ensure!(said.stderr.contains(FOUND) && said.stderr.contains("kv_handle"), "nothing was found: {said}");
        told("libFuzzer, `kv_pair.c`, seed 1", began, Some(units(&said)?));
        let line = |with: &str| said.stderr.lines().find(|line| line.contains(with)).map(str::to_owned);
        Ok((line("numbers ").context("no numbers")?, line("Test unit written to").context("no finding")?))
    };
    let (first, second) = (run()?, run()?);
    ensure!(first == second, "{first:?} and then {second:?}");
    Ok(())
}

/// Coverage of the server, whose program ends by itself after its client.
#[test]
fn coverage_is_the_program_s() -> Result<()> {
    let launcher = Launcher::new()?;
    // Counters are written beside the program, by the user.
    let folder = launcher.tmp();
    let server = built(&folder, "kv_server", &["kv_server.c", "kv.c"], &["--coverage"])?;
    let client = built(&folder, "kv_client", &["kv_client.c"], &[])?;
    let serving = launcher.host().start(launcher.command(&[], &[&server, "7471", "1"])?)?;
    wait_until("kv_server to listen", || Ok(serving.stdout_so_far().contains("listening")))?;
    launcher.run(&[&client, "127.0.0.1", "7471", "8"])?;
    serving.finish(TIMEOUT)?.success()?;
    let gcov = Command::new("gcov").args(["--stdout", "kv_server-kv.gcda"]).current_dir(&folder).output()?;
    let lines = String::from_utf8(gcov.stdout)?;
    let times = |code: &str| {
        let line = lines.lines().find(|line| line.contains(code)).with_context(|| format!("no {code:?} in {lines}"))?;
        Ok::<_, anyhow::Error>(line.split_once(':').context("no count")?.0.trim().to_owned())
    };
    // Of eight requests each fourth is a GET, and the first of them is of a key that is not there.
    ensure!(times("memcpy((*at)->value, value, value_len);")? == "6", "{lines}");
    ensure!(times("memcpy(reply + 4")? == "1", "{lines}");
    ensure!(times("free(*at);")? == "#####", "{lines}");
    Ok(())
}
