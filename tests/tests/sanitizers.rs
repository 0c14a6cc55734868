//! Programs that are built with sanitizers, or run under debuggers, find the devices; a correct one is not reported, and a
//! wrong one is. Each row of the table in docs/guide/sanitizers.md is a test here, both below `urxe run` and where urxe is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Finished, Launcher, TIMEOUT, World};

const PROGRAM: &str = include_str!("../programs/ping_pong_threads.c");
const GUIDE: &str = include_str!("../../docs/guide/sanitizers.md");

/// A way to build the program, and to run it.
struct Row {
    /// First cell of the guide's table.
    name: &'static str,
    /// Compiler and its options.
    build: &'static [&'static str],
    /// Words in front of the program.
    under: &'static [&'static str],
    /// Arguments that make the program wrong, and what is reported then.
    mistakes: &'static [(&'static str, &'static str)],
    /// How to know whether the program is reported.
    verdict: Verdict,
}

/// Sign of a report.
#[derive(Clone, Copy)]
enum Verdict {
    /// The tool changes the exit status.
    Status,
    /// The summary of a report names the program's source. Others are the libraries', which are not built with the sanitizer.
    Source,
}

const FREED: [(&str, &str); 2] =
    [("send-freed", "AddressSanitizer: heap-use-after-free"), ("write-freed", "AddressSanitizer: heap-use-after-free")];
const LEAKS: [(&str, &str); 1] = [("leak", "LeakSanitizer: detected memory leaks")];
const PERF: &str = "perf";
const RACES: [(&str, &str); 1] = [("race", "ThreadSanitizer: data race")];

/// Runs a row: the program as it is, then with each mistake.
fn check(row: &Row) -> Result<()> {
    let cell = format!("\n| {} |", row.name);
    ensure!(GUIDE.contains(&cell), "docs/guide/sanitizers.md has no row {:?}", row.name);
    let launcher = Launcher::new()?;
    if row.name == PERF && !may_count(&launcher)? {
        println!("left out: there is no perf, or the kernel lets users count nothing (perf_event_paranoid)");
        return Ok(());
    }
    let program = built(launcher.world().dir(), row.build)?;
    let words = |argument: Option<&'static str>| -> Vec<&str> {
        row.under.iter().copied().chain([program.as_str()]).chain(argument).collect()
    };
    clean(row, &launcher.try_run(&[], &words(None))?).context("below urxe run")?;
    for (mistake, report) in row.mistakes {
        reported(row, &launcher.try_run(&[], &words(Some(mistake)))?, report)?;
    }
    // Over UDP, where what is sent goes through the kernel.
    clean(row, &launcher.try_run(&["--loopback", "udp"], &words(None))?).context("below urxe run, over UDP")?;

    let world = World::new()?;
    let suppressed = ["env", "VALGRIND_OPTS=--suppressions=/var/lib/urxe/valgrind.supp"];
    let installed = |argument| -> Result<Finished> {
        let words = [&suppressed[..], &words(argument)].concat();
        let mut command = world.host().command(words[0]);
        command.args(&words[1..]);
        world.host().start(command)?.finish(TIMEOUT)
    };
    clean(row, &installed(None)?).context("where urxe is installed")?;
    if let Some((mistake, report)) = row.mistakes.first() {
        reported(row, &installed(Some(mistake))?, report).context("where urxe is installed")?;
    }
    Ok(())
}

/// Whether perf counts for a user: containers and some distributions forbid it.
fn may_count(launcher: &Launcher) -> Result<bool> {
    let Ok(perf) = launcher.host().start(launcher.plain(&["perf", "stat", "-e", "task-clock", "true"])) else {
        return Ok(false);
    };
    Ok(perf.finish(TIMEOUT)?.status.success())
}

/// Checks that the program has played, and that no report was made.
fn clean(row: &Row, said: &Finished) -> Result<()> {
    ensure!(said.status.success() && !is_reported(row, said) && said.stdout.contains("played"), "{said}");
    Ok(())
}

fn reported(row: &Row, said: &Finished, report: &str) -> Result<()> {
    let has = |text: &str| text.contains(report);
    ensure!(is_reported(row, said) && (has(&said.stderr) || has(&said.stdout)), "no {report:?}: {said}");
    Ok(())
}

fn is_reported(row: &Row, said: &Finished) -> bool {
    let is_own = |line: &str| line.starts_with("SUMMARY: ") && line.contains("/ping_pong_threads.c:");
    match row.verdict {
        Verdict::Status => !said.status.success(),
        Verdict::Source => said.stderr.lines().any(is_own),
    }
}

/// Builds the program in `folder`, which every user may enter.
fn built(folder: &Path, build: &[&str]) -> Result<String> {
    let source = folder.join("ping_pong_threads.c");
    fs::write(&source, PROGRAM)?;
    let program = folder.join("ping_pong");
    let (compiler, options) = build.split_first().context("no compiler")?;
    let mut command = Command::new(compiler);
    command.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]);
    command.args(options).arg("-o").arg(&program).arg(&source).args(["-libverbs", "-pthread"]);
    if options.contains(&"-shared-libasan") {
        command.arg(format!("-Wl,-rpath,{}", runtime_folder(compiler)?.display()));
    }
    let compiled = command.output().with_context(|| format!("starting {compiler} (missing? make setup)"))?;
    ensure!(compiled.status.success(), "{compiler}: {}", String::from_utf8_lossy(&compiled.stderr));
    program.into_os_string().into_string().ok().context("a path that is not UTF-8")
}

/// Folder of the compiler's shared runtimes.
fn runtime_folder(compiler: &str) -> Result<PathBuf> {
    let name = format!("-print-file-name=libclang_rt.asan-{}.so", std::env::consts::ARCH);
    let said = Command::new(compiler).arg(name).output()?;
    let path = PathBuf::from(String::from_utf8(said.stdout)?.trim());
    Ok(path.parent().context("no folder")?.to_owned())
}

macro_rules! rows {
    ($($test:ident: $row:expr;)*) => {
        $(#[test]
        fn $test() -> Result<()> {
            check(&$row)
        })*

        /// Names of the rows that have a test.
        const NAMES: &[&str] = &[$($row.name),*];
    };
}

rows! {
    address_sanitizer_of_gcc: Row {
        name: "AddressSanitizer, gcc",
        build: &["gcc", "-fsanitize=address"],
        under: &[],
        mistakes: &[FREED[0], FREED[1], LEAKS[0]],
        verdict: Verdict::Status,
    };
    address_sanitizer_of_clang: Row {
        name: "AddressSanitizer, clang",
        build: &["clang", "-fsanitize=address"],
        under: &[],
        mistakes: &FREED,
        verdict: Verdict::Status,
    };
    address_sanitizer_as_a_library_of_clang: Row {
        name: "AddressSanitizer, clang `-shared-libasan`",
        build: &["clang", "-fsanitize=address", "-shared-libasan"],
        under: &[],
        mistakes: &[FREED[1]],
        verdict: Verdict::Status,
    };
    address_sanitizer_in_a_program_of_gcc: Row {
        name: "AddressSanitizer, gcc `-static-libasan -rdynamic`",
        build: &["gcc", "-fsanitize=address", "-static-libasan", "-rdynamic"],
        under: &[],
        mistakes: &[FREED[0]],
        verdict: Verdict::Status,
    };
    undefined_behaviour_sanitizer: Row {
        name: "UndefinedBehaviorSanitizer",
        build: &["gcc", "-fsanitize=undefined", "-fno-sanitize-recover=undefined"],
        under: &[],
        mistakes: &[("overflow", "runtime error: signed integer overflow")],
        verdict: Verdict::Status,
    };
    leak_sanitizer: Row {
        name: "LeakSanitizer",
        build: &["gcc", "-fsanitize=leak"],
        under: &[],
        mistakes: &LEAKS,
        verdict: Verdict::Status,
    };
    thread_sanitizer_of_gcc: Row {
        name: "ThreadSanitizer, gcc",
        build: &["gcc", "-fsanitize=thread"],
        under: &[],
        mistakes: &RACES,
        verdict: Verdict::Status,
    };
    thread_sanitizer_of_clang: Row {
        name: "ThreadSanitizer, clang",
        build: &["clang", "-fsanitize=thread"],
        under: &[],
        mistakes: &RACES,
        verdict: Verdict::Status,
    };
    memory_sanitizer: Row {
        name: "MemorySanitizer, clang",
        build: &["clang", "-fsanitize=memory", "-fsanitize-recover=memory"],
        under: &["env", "MSAN_OPTIONS=exit_code=0"],
        mistakes: &[("unset", "use-of-uninitialized-value")],
        verdict: Verdict::Source,
    };
    memcheck: Row {
        name: "valgrind memcheck",
        build: &["gcc"],
        under: &["valgrind", "--leak-check=full", "--error-exitcode=9"],
        mistakes: &[
            ("send-freed", "Invalid read"),
            ("write-freed", "Invalid write"),
            ("leak", "definitely lost: 123"),
            ("unset", "depends on uninitialised value"),
        ],
        verdict: Verdict::Status,
    };
    helgrind: Row {
        name: "valgrind helgrind",
        build: &["gcc"],
        under: &["valgrind", "--tool=helgrind", "--error-exitcode=9"],
        mistakes: &[("race", "Possible data race")],
        verdict: Verdict::Status,
    };
    gdb: Row {
        name: "gdb",
        build: &["gcc"],
        under: &["gdb", "-batch", "-return-child-result", "-ex", "run", "--args"],
        mistakes: &[("crash", "received signal SIGSEGV")],
        verdict: Verdict::Status,
    };
    perf: Row {
        name: PERF,
        build: &["gcc"],
        under: &["perf", "stat", "-e", "task-clock"],
        mistakes: &[],
        verdict: Verdict::Status,
    };
    strace: Row {
        name: "strace",
        build: &["gcc"],
        under: &["strace", "-f"],
        mistakes: &[("crash", "SIGSEGV")],
        verdict: Verdict::Status,
    };
}

#[test]
fn every_row_of_the_guide_is_tested() -> Result<()> {
    let rows =
        GUIDE.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with("| "));
    let mut names: Vec<_> = rows.filter_map(|row| row.trim_start_matches("| ").split(" |").next()).collect();
    let mut tested = NAMES.to_vec();
    names.sort_unstable();
    tested.sort_unstable();
    ensure!(names == tested, "the guide has {names:?}");
    Ok(())
}

/// A program that is started by another finds its sanitizer's runtime too, whatever became of the environment.
#[test]
fn programs_that_others_start() -> Result<()> {
    let launcher = Launcher::new()?;
    let program = built(launcher.world().dir(), &["gcc", "-fsanitize=address"])?;
    for words in [&["sh", "-c", &format!("env -i {program}")][..], &["env", "ASAN_OPTIONS=detect_leaks=0", &program]] {
        let said = launcher.try_run(&[], words)?.success()?;
        ensure!(said.stdout.contains("played"), "{said}");
    }
    Ok(())
}
