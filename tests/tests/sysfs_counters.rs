//! `/sys/class/infiniband/<device>/ports/1/counters` and `hw_counters`: live under `urxe run`, refreshed elsewhere.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use urxe_tests::{Launcher, TIMEOUT, World, artifacts, wait_until};

const PORT: &str = "/sys/class/infiniband/urxe0/ports/1";

/// A shell's word for both ends of a ping-pong that sends so many messages of 4096 bytes each way, in the background.
fn pingpong(port: u16, messages: u32) -> String {
    format!(
        "common='-d urxe0 -g 1 -m 1024 -p {port} -n {messages}'
        ibv_rc_pingpong $common >/dev/null & server=$!
        until ss -Hltn sport = {port} | grep -q .; do sleep 0.02; done
        ibv_rc_pingpong $common 127.0.0.1 >/dev/null & client=$!
        port={PORT}
        "
    )
}

fn numbers(text: &str) -> Result<BTreeMap<String, u64>> {
    let pair = |line: &str| -> Result<(String, u64)> {
        let (path, value) = line.split_once(':').with_context(|| format!("not a counter: {line}"))?;
        let name: Vec<&str> = path.rsplit('/').take(2).collect();
        Ok((name.into_iter().rev().collect::<Vec<_>>().join("/"), value.parse()?))
    };
    text.lines().map(pair).collect()
}

/// Counters include programs that have ended, as with a card.
#[test]
fn counters_outlive_programs() -> Result<()> {
    let launcher = Launcher::new()?;
    let port = launcher.host().next_port();
    let said = launcher.sh(&format!(
        "grep -r . {PORT}/counters {PORT}/hw_counters
        echo
        {}
        wait $server; wait $client
        grep -r . {PORT}/counters {PORT}/hw_counters",
        pingpong(port, 100)
    ));
    let said = said?.stdout;
    let (before, after) = said.split_once("\n\n").context("not two parts")?;
    let (before, after) = (numbers(before)?, numbers(after)?);
    ensure!(before.len() == after.len() && before.len() > 60, "{} {}", before.len(), after.len());
    ensure!(before.values().all(|value| *value == 0), "{before:?}");
    // Two ends, 100 messages of four packets each, and at most as many ACKs.
    for name in
        ["counters/port_xmit_packets", "counters/port_rcv_packets", "hw_counters/sent_pkts", "hw_counters/rcvd_pkts"]
    {
        ensure!((800..=1600).contains(&after[name]), "{name} {}: {after:?}", after[name]);
    }
    // In words of four bytes.
    for name in ["counters/port_xmit_data", "counters/port_rcv_data"] {
        ensure!((200 * 1024..=200 * 1024 + 1600 * 16).contains(&after[name]), "{name} {}", after[name]);
    }
    ensure!(after["counters/symbol_error"] == 0 && after["hw_counters/icrc_err"] == 0, "{after:?}");
    Ok(())
}

/// While programs run, by every way of opening a file. They may have no processor for a while, and who is slow to answer is left
/// out: each way has some tries.
#[test]
fn counters_of_programs_at_work() -> Result<()> {
    let launcher = Launcher::new()?;
    let port = launcher.host().next_port();
    let said = launcher.run(&["bash", "-ec", &format!(
        "{}
        trap 'kill $server $client' EXIT
        file=$port/counters/port_xmit_packets
        while [ $(cat $file) -lt 5000 ]; do sleep 0.05; done
        last=$(cat $file)
        for way in 'cat $file' 'cd $port/counters; cat port_xmit_packets' 'cd $port; cat counters/../hw_counters/sent_pkts' \
                   'echo $(<$file)' 'cat //sys/class/infiniband/./urxe0/ports/1/counters/port_xmit_packets' \
                   'cat /sys/devices/virtual/infiniband/urxe0/ports/1/counters/port_xmit_packets' \
                   'sed -n p $file' 'grep -rh . $file' 'cd $port; grep -rh --include=sent_pkts . hw_counters' 'dd if=$file bs=1 2>/dev/null' \
                   'python3 -c \"print(open(\\\"$file\\\").read())\"'; do
            tries=0
            until now=$(eval \"$way\") || exit 1; [ $now -gt $last ]; do
                [ $((tries += 1)) -lt 100 ] || {{ echo \"$way: $now after $last\"; exit 1; }}
                sleep 0.1
            done
            last=$now
        done
        echo all",
        pingpong(port, 100_000_000)
    )])?;
    ensure!(said.stdout == "all\n", "{said}");
    Ok(())
}

#[test]
fn a_counter_is_a_file_like_any_other() -> Result<()> {
    let script = "import os
file = '/sys/class/infiniband/urxe0/ports/1/counters/symbol_error'
fd = os.open(file, os.O_RDONLY)
print(os.get_inheritable(fd), os.lseek(fd, 0, os.SEEK_CUR), os.read(fd, 100), os.read(fd, 100), os.pread(fd, 100, 0))
try: os.write(os.open(file, os.O_RDWR), b'1')
except OSError as error: print('read-only')
os.chdir('/tmp')
open('symbol_error', 'w').write('mine')
print(open('symbol_error').read(), os.path.getsize(file) > 0)
os.remove('symbol_error')";
    let said = Launcher::new()?.python(&script.replace("'/tmp'", "os.environ['TMPDIR']"))?;
    ensure!(said.stdout == "False 0 b'0\\n' b'' b'0\\n'\nread-only\nmine True\n", "{said}");
    Ok(())
}

/// cp(1) and install(1) compare stat(2) of the path with fstat(2) of what they have opened; tail(1) looks whether a file is
/// shorter than what it has shown.
#[test]
fn a_counter_is_the_same_file_by_its_path_and_its_descriptor() -> Result<()> {
    let launcher = Launcher::new()?;
    let port = launcher.host().next_port();
    let said = launcher.sh(&format!(
        "{}
        wait $server; wait $client
        file=$port/counters/port_xmit_packets
        cp $file $TMPDIR/copied; install -m 600 $file $TMPDIR/installed
        [ $(cat $file $file $TMPDIR/copied $TMPDIR/installed | sort -u | wc -l) = 1 ]
        sleep 0 & ended=$!; wait $ended
        [ $(tail -s 0.01 -f --pid=$ended $file) = $(cat $file) ]
        [ $(tail -s 0.01 ---disable-inotify -f --pid=$ended $file) = $(cat $file) ]
        mkdir $TMPDIR/all; cd $port/hw_counters; cp * $TMPDIR/all; cat sent_pkts $TMPDIR/all/sent_pkts
        python3 -c 'import os, sys
for path in os.listdir(\".\") + sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    folder = os.open(os.path.dirname(path) or \".\", os.O_RDONLY)
    for status in os.stat(path), os.stat(fd), os.lstat(path), os.stat(os.path.basename(path), dir_fd=folder):
        assert os.path.samestat(status, os.fstat(fd)) and status[:9] == os.fstat(fd)[:9], (status, os.fstat(fd))
    assert status.st_size == 4096 and os.fstat(os.dup(fd)).st_nlink == 1, status
    os.close(fd)
print(\"all\")' $file",
        pingpong(port, 100)
    ))?;
    let lines: Vec<&str> = said.stdout.lines().collect();
    ensure!(matches!(lines[..], [packets, copied, "all"] if packets == copied && packets.len() >= 3), "{said}");
    ensure!(said.stderr.is_empty(), "{said}");
    Ok(())
}

/// A write beyond `RLIMIT_FSIZE` ends a program by SIGXFSZ (`setrlimit(2)`).
#[test]
fn a_program_that_may_write_no_files_opens_counters_and_closes_devices() -> Result<()> {
    let launcher = Launcher::new()?;
    let script =
        format!("ulimit -f 0; ibv_devinfo -d urxe0 | grep -c PORT_ACTIVE; cat {PORT}/counters/port_xmit_packets");
    let said = launcher.sh(&script)?;
    ensure!(said.stdout == "1\n0\n", "{said}");
    Ok(())
}

/// Where the tree was installed its files are static, until `urxe status --sysfs` writes what it was told.
#[test]
fn an_installed_tree_is_refreshed() -> Result<()> {
    let world = World::new()?;
    let host = world.host();
    let tree = host.run("printenv", &["SYSFS_PATH"])?.stdout;
    let (tree, urxe) = (tree.trim(), artifacts::urxe()?);
    let read = |name: &str| -> Result<u64> {
        let path = format!("{tree}/class/infiniband/urxe0/ports/1/{name}");
        Ok(host.run("cat", &[&path])?.stdout.trim().parse()?)
    };
    let port = host.next_port().to_string();
    let words = ["-d", "urxe0", "-g", "1", "-p", &port, "-n", "100000000"];
    let server = urxe_tests::wait_for_listener(host, host.spawn("ibv_rc_pingpong", &words)?, port.parse()?)?;
    let client = host.spawn("ibv_rc_pingpong", &[&words[..], &["127.0.0.1"]].concat())?;
    let refreshing = host.spawn(&urxe, &["status", "--sysfs", tree, "--watch", "0.05"])?;
    let before = read("counters/port_xmit_packets")?;
    wait_until("the files grow", || Ok(read("counters/port_xmit_packets")? > before.max(1000)))?;
    ensure!(read("hw_counters/rcvd_pkts")? > 0 && read("counters/symbol_error")? == 0);
    for process in [server, client, refreshing] {
        process.signal(libc::SIGKILL)?;
        process.finish(TIMEOUT)?;
    }
    host.run(&urxe, &["status", "--sysfs", tree])?;
    ensure!(read("counters/port_xmit_packets")? == 0, "nobody is there any more");
    let wrong = host.spawn(&urxe, &["status", "--sysfs", "/nowhere"])?.finish(TIMEOUT)?;
    ensure!(!wrong.status.success() && wrong.stderr.contains("/nowhere/class/infiniband"), "{wrong}");
    Ok(())
}
