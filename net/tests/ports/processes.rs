//! Many processes on one address, one of which is killed.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use urxe_wire::Qpn;

use crate::end::{End, PATIENCE};
use crate::namespace::alone;

/// A request goes again when no answer came for so long.
const RETRY: Duration = Duration::from_millis(20);
/// A line that a child says begins so; the test harness talks too.
const SAYS: &str = "child says ";

/// Names the user id that a child takes on.
const USER: &str = "URXE_TEST_USER";
/// Set in children whose ports share memory.
const SHARES: &str = "URXE_TEST_SHARES";

/// A process with a port on `lo`.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    qpn: u32,
}

impl Process {
    /// Starts one as this user, and waits until its port is open.
    fn start(user: u32, shares: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::child", "--exact", "--ignored", "--nocapture"])
            .env(USER, user.to_string())
            .env(SHARES, if shares { "1" } else { "0" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, output, qpn: 0 };
        process.qpn = process.listen().parse().unwrap();
        process
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn listen(&mut self) -> String {
        loop {
            let mut line = String::new();
            let n = self.output.read_line(&mut line).unwrap();
            assert!(n > 0, "a child ended early");
            // The harness prints the test's name without a line end.
            if let Some((_, said)) = line.trim_end().split_once(SAYS) {
                return said.to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Gone already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Main function of a child: answers every request, and makes `rounds` requests of its peer, one after the other.
#[test]
#[ignore = "the other tests of this file start it as a process of its own"]
fn child() {
    let user = std::env::var(USER).unwrap().parse().unwrap();
    // SAFETY: no pointer involved.
    assert_eq!(unsafe { libc::setresuid(user, user, user) }, 0, "{}", std::io::Error::last_os_error());
    let mut end = if std::env::var(SHARES).unwrap() == "1" { End::sharing_on("lo") } else { End::on("lo") };
    println!("{SAYS}{}", end.qpn.get());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let numbers: Vec<u32> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [gid, peer, rounds] = numbers[..] else { panic!("{line}") };
    let peer = Qpn::new(peer);
    let route = end.route(gid as usize, peer);
    // The rest of stdin says when to end.
    let ending = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    const ANSWER: u32 = 1 << 31;
    let (mut round, mut sent, mut told) = (0, None::<Instant>, false);
    while !ending.is_finished() {
        if round < rounds && sent.is_none_or(|at| at.elapsed() > RETRY) {
            end.send(&route, peer, round, 200);
            sent = Some(Instant::now());
        }
        let arrivals = end.receive();
        if arrivals.is_empty() {
            std::thread::yield_now();
        }
        for arrival in arrivals {
            if arrival.number & ANSWER == 0 {
                end.send(&route, peer, arrival.number | ANSWER, 200);
            } else if arrival.number == round | ANSWER {
                round += 1;
                sent = None;
            }
        }
        if round == rounds && !told {
            let rings = end.count("tx_ring_runs");
            println!("{SAYS}done {} {} {rings}", end.count("takeovers"), end.count("flows_opened"));
            told = true;
        } else if round == rounds / 2 && sent.is_none() {
            println!("{SAYS}half");
        }
    }
}

/// Waits until some process owns the address, by trying to take its name.
fn wait_for_owner(gid: usize) {
    let address = ["127.0.0.1", "::1%0"][gid - 1];
    let name = SockAddr::unix(format!("\0urxe/1/owner/{address}")).unwrap();
    let start = Instant::now();
    loop {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        match socket.bind(&name) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => return,
            other => other.unwrap(),
        }
        drop(socket);
        assert!(start.elapsed() < PATIENCE, "nobody took {address} over");
        // Whoever lost the race against this function tries again in a moment.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Pairs of processes exchange; the first process, which owns the address, is killed midway.
fn exchange(gid: usize, pairs: usize, kill: bool, user: fn(usize) -> u32) {
    const ROUNDS: u32 = 300;
    alone(|| {
        let mut processes: Vec<Process> = (0..2 * pairs).map(|at| Process::start(user(at), false)).collect();
        let qpns: Vec<u32> = processes.iter().map(|p| p.qpn).collect();
        for (at, process) in processes.iter_mut().enumerate() {
            // Both of a pair make requests.
            process.tell(&format!("{gid} {} {ROUNDS}", qpns[at ^ 1]));
        }
        let mut rest = if kill {
            for process in &mut processes[2..] {
                assert_eq!(process.listen(), "half");
            }
            processes[0].child.kill().unwrap();
            processes[0].child.wait().unwrap();
            wait_for_owner(gid);
            processes.split_off(2)
        } else {
            processes.split_off(0)
        };
        let start = Instant::now();
        let (mut takeovers, mut flows) = (0, 0);
        for process in &mut rest {
            let report = loop {
                match process.listen().strip_prefix("done ") {
                    Some(report) => break report.to_owned(),
                    None => assert!(start.elapsed() < 6 * PATIENCE, "it took {:?}", start.elapsed()),
                }
            };
            let [t, f, _] = numbers(&report);
            takeovers += t;
            flows += f;
        }
        for process in &mut rest {
            process.tell("");
        }
        // Of two addresses; the other of the killed pair, who says nothing, may have taken them.
        assert!(takeovers <= if kill { 2 } else { 0 }, "{takeovers} takeovers");
        assert!(flows > 0, "nothing ever came directly");
    });
}

fn numbers(report: &str) -> [u32; 3] {
    let numbers: Vec<u32> = report.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Two processes that would share memory exchange requests. Returns how many runs went through it.
fn exchange_sharing(users: [u32; 2]) -> u32 {
    alone(|| {
        let mut processes = users.map(|user| Process::start(user, true));
        let qpns = [processes[0].qpn, processes[1].qpn];
        for (process, peer) in processes.iter_mut().zip([qpns[1], qpns[0]]) {
            process.tell(&format!("1 {peer} 300"));
        }
        let mut through_memory = 0;
        for process in &mut processes {
            let report = loop {
                if let Some(report) = process.listen().strip_prefix("done ") {
                    break report.to_owned();
                }
            };
            through_memory += numbers(&report)[2];
        }
        for process in &mut processes {
            process.tell("");
        }
        through_memory
    })
}

//= spec/hosts.md#net-020
//= type=test
//# Memory MUST be shared with processes of the same user and host only, and everybody else reached by UDP.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn memory_is_shared_among_processes_of_one_user() {
    assert!(exchange_sharing([65_530, 65_530]) >= 600);
    assert_eq!(exchange_sharing([65_530, 65_531]), 0);
    assert_eq!(exchange_sharing([0, 65_530]), 0);
    // Whom the kernel shows for everybody who has no number here.
    assert_eq!(exchange_sharing([65_534, 65_534]), 0);
}

//= spec/hosts.md#net-001
//= type=test
//# Processes of one host MUST share UDP 4791 of an address without privileges.
#[test]
fn sixteen_processes_share_one_ipv4_address() {
    exchange(1, 8, false, |_| 0);
}

#[test]
fn the_owner_is_killed_and_fifteen_others_go_on_over_ipv4() {
    exchange(1, 8, true, |_| 0);
}

#[test]
fn the_owner_is_killed_and_the_others_go_on_over_ipv6() {
    exchange(2, 3, true, |_| 0);
}

//= spec/hosts.md#net-001
//= type=test
//# Processes of one host MUST share UDP 4791 of an address without privileges.
#[test]
#[ignore = "needs root: in a user namespace of one user there are no others"]
fn different_users_without_privileges_share_an_address() {
    for gid in [1, 2] {
        exchange(gid, 2, true, |at| if at == 0 { 0 } else { 65_530 + u32::try_from(at % 3).unwrap_or(0) });
    }
}
