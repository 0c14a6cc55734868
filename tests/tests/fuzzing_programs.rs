//! Each way of docs/guide/fuzzing.md finds the mistake that is planted in docs/guide/fuzzing/kv.c, with a seed, within a number of
//! executions.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, Launcher, Process, TIMEOUT, wait_until};

/// Report of AddressSanitizer about the planted mistake.
const FOUND: &str = "AddressSanitizer: heap-buffer-overflow";

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
    let client = launcher.try_run(&[], &[&client, "127.0.0.1", "7471", "20000"])?;
    ensure!(!client.status.success(), "20000 requests were answered");
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
    let words = [&fuzzer, dictionary.as_str(), "-max_len=128", "-seed=1", "-runs=300000", "-timeout=600", &artifacts];
    let said = launcher.try_run(&[], &words)?;
    ensure!(said.stderr.contains(FOUND) && said.stderr.contains("kv_handle"), "nothing was found: {said}");
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
    let mut put = b"P\x05\0\x14alpha".to_vec();
    put.resize(128, b'v');
    let put = file(&launcher, "put", &put)?;
    let get = file(&launcher, "get", b"G\x05\0\0alpha")?;
    let saved = launcher.tmp().join("found");
    let saved = saved.to_str().context("a path that is not UTF-8")?;
    let corpus = ["--corpus", &put, "--corpus", &get, "--save", saved, "--quiet"];
    let said = urxe(
        &launcher,
        &[&["inject", "--cm", "127.0.0.1:7471", "--generate", "20000", "--seed", "5"], &corpus[..]].concat(),
    )?;
    ensure!(said.status.code() == Some(1) && said.stdout.contains("found: no other connection"), "{said}");
    found(server)?;
    // What was saved finds it again.
    let server = self::server(&launcher, &[])?;
    let said = urxe(&launcher, &["inject", "--cm", "127.0.0.1:7471", "--quiet", "--script", saved])?;
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
    let said = urxe(&launcher, &["replay", capture, "--cm", "127.0.0.1:7471"])?.success()?;
    // The store has the key by now that the first GET did not find then.
    ensure!(said.stdout.contains("with another payload from byte 0"), "{said}");
    ensure!(said.stdout.contains("6 packets sent, rounds: 1, differences from the capture: 1\n"), "{said}");
    let dictionary = file(&launcher, "kv.dict", include_bytes!("../../docs/guide/fuzzing/kv.dict"))?;
    let mutate = ["--mutate", "3000", "--seed", "3", "--dict", &dictionary, "--quiet"];
    let said = urxe(&launcher, &[&["replay", capture, "--cm", "127.0.0.1:7471"], &mutate[..]].concat())?;
    ensure!(said.status.code() == Some(1) && said.stdout.contains("found: no other connection"), "{said}");
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
            let early = said.stderr.contains("Connection refused") || said.stderr.contains("rejects");
            if early {
                said = inject()?;
            }
            Ok(!early)
        })?;
        drop(program);
        ensure!(said.status.code() == Some(code), "{said}");
        Ok(said)
    };
    let message = "send \"x\"*1024\nexpect ack\n";
    let rc = play(&["--pingpong", "127.0.0.1"], message, &["ibv_rc_pingpong", "-g", "1", "-s", "1024"], 0)?;
    ensure!(rc.stdout.contains("> RC SEND Only QP=") && rc.stdout.contains("< RC Acknowledge QP="), "{rc}");
    // A First packet must be full: NAK Invalid Request (IBA 9.7.4.1.6).
    let short = "SEND_FIRST \"short\"\nexpect nak within=5s\n";
    let nak = play(&["--pingpong", "127.0.0.1"], short, &["ibv_rc_pingpong", "-g", "1"], 0)?;
    ensure!(nak.stdout.contains("Nak Invalid Request"), "{nak}");
    let wrong = "send icrc=bad\n";
    let mistake = play(&["--pingpong", "127.0.0.1"], wrong, &["true"], 1)?;
    ensure!(mistake.stderr.contains("line 1, column 6: expected \"text\""), "{mistake}");
    let ud = play(
        &["--pingpong", "127.0.0.1", "--transport", "ud"],
        "send \"x\"*1024\nexpect SEND_ONLY\n",
        &["ibv_ud_pingpong", "-g", "1"],
        0,
    )?;
    ensure!(ud.stdout.contains("Q_Key=0x11111111"), "{ud}");
    // The server of rping reads from the address and by the key in the message.
    let rping = "send be64:0x5000 be32:0x1234 be32:64\nexpect ack\nexpect READ_REQUEST\n";
    let rping = play(&["--cm", "127.0.0.1:7174"], rping, &["rping", "-s", "-C", "1"], 0)?;
    ensure!(rping.stdout.contains("VA=0x0000000000005000 R_Key=0x00001234 DMALen=64"), "{rping}");
    Ok(())
}

/// The peer is the passive side.
#[test]
fn scripts_wait_for_programs() -> Result<()> {
    let launcher = Launcher::new()?;
    let urxe = launcher.urxe();
    let urxe = urxe.to_str().context("a path that is not UTF-8")?;
    let script = file(&launcher, "script", b"expect SEND_ONLY within=60s\nsend \"y\"*1024\nexpect ack\n")?;
    let words = [urxe, "inject", "--pingpong-listen", "18515", "--script", &script];
    let peer = launcher.host().start(launcher.plain(&words))?;
    wait_until("the peer to listen", || launcher.host().is_listening(18515))?;
    let client = ["ibv_rc_pingpong", "-g", "1", "-s", "1024", "-n", "1", "127.0.0.1"];
    let _client = launcher.host().start(launcher.command(&[], &client)?)?;
    let said = peer.finish(TIMEOUT)?.success()?;
    ensure!(said.stdout.contains("> RC SEND Only") && said.stdout.contains("< RC Acknowledge"), "{said}");
    Ok(())
}

/// Client and server in one process, without threads and in virtual time: two runs have the same numbers and find the same, at the same
/// execution.
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
        &artifacts,
    ];
    let run = || {
        let said = launcher.try_run(&["--deterministic", "7"], &words)?;
        ensure!(said.stderr.contains(FOUND) && said.stderr.contains("kv_handle"), "nothing was found: {said}");
        let line = |with: &str| said.stderr.lines().find(|line| line.contains(with)).map(str::to_owned);
        Ok((line("numbers ").context("no numbers")?, line("Test unit written to").context("no finding")?))
    };
    let (first, second) = (run()?, run()?);
    ensure!(first == second, "{first:?} and then {second:?}");
    Ok(())
}
