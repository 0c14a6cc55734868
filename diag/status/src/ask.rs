//! Asking every device of this network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use urxe_net::ipc::credentials::{self, Credentials};

use crate::NAMES;

/// More than a process with every queue pair it can have would say.
const LONGEST: u64 = 64 << 20;

/// Bytes that root reads of one device of another user (thousands of queue pairs), and of all of them together.
const OTHERS_LONGEST: u64 = 4 << 20;
const OTHERS_LONGEST_TOGETHER: u64 = 16 << 20;

/// Timeouts for which a device of the own user is listened to that says something every now and then.
const MOST_WAITS: u32 = 10;

/// Devices of other users are listened to for so many times the timeout, all of them together.
const OTHERS_MOST_WAITS: u32 = 2;

/// Other users that may use up their part of what is left, before the next one's becomes too small: one user may have 65536 user IDs
/// (subuid(5)), and the lowest of all come first.
const OTHERS_PARTS: u32 = 8;

/// Answers of the devices asked.
#[derive(Debug, Default)]
pub struct Answers {
    /// Reports of devices.
    pub reports: Vec<Report>,
    /// Devices of other users, and of processes that do not answer.
    pub silent: usize,
}

/// One JSON object for one device of one process.
#[derive(Debug)]
pub struct Report {
    /// JSON text.
    pub text: String,
    /// The numbers that the process has, here and in PID namespaces of its own; none if it cannot be seen from here. Not
    /// asked for where it does not matter: this user and root may tell of any process.
    pids: Option<Vec<u32>>,
    pid: Option<u32>,
}

impl Report {
    /// Process id of the device's process, if that is visible in this PID namespace and the report is its own. The process may have
    /// ended since, and another have its id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid.filter(|pid| self.is_by(Some(u64::from(*pid))))
    }

    /// Whether a report that names this process was made by it.
    #[must_use]
    pub fn is_by(&self, pid: Option<u64>) -> bool {
        let Some(pids) = &self.pids else { return true };
        pid.is_some_and(|pid| pids.iter().any(|own| u64::from(*own) == pid))
    }
}

/// How far somebody who answers is believed. Any user may have a socket with the name of a device's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    /// Trust in this user, or root.
    Full,
    /// Another user, and this is root: for processes of his.
    OwnProcesses,
    /// Another user, whose devices do not answer this one.
    None,
}

const fn trust(answerer: u32, own: u32) -> Trust {
    match (answerer, own) {
        (0, _) => Trust::Full,
        _ if answerer == own => Trust::Full,
        (_, 0) => Trust::OwnProcesses,
        _ => Trust::None,
    }
}

/// Time and bytes that are left for answers. Other users share one, for there may be any number of devices; each has an equal
/// part of it, or an eighth of what is left, so that what one user's devices use up is not missing for another's.
struct Allowance {
    until: Instant,
    bytes: u64,
    /// Of `bytes`, those of one device.
    each: u64,
}

impl Allowance {
    fn new(timeout: Duration) -> Self {
        let until = Instant::now() + timeout.saturating_mul(MOST_WAITS);
        Self { until, bytes: LONGEST, each: LONGEST }
    }

    /// The part of one of so many that are left.
    fn part(&self, left: u32) -> Self {
        let left = left.min(OTHERS_PARTS);
        let now = Instant::now();
        let time = self.until.saturating_duration_since(now) / left.max(1);
        Self { until: now + time, bytes: self.bytes / u64::from(left.max(1)), each: self.each }
    }

    fn of_others(timeout: Duration) -> Self {
        let until = Instant::now() + timeout.saturating_mul(OTHERS_MOST_WAITS);
        Self { until, bytes: OTHERS_LONGEST_TOGETHER, each: OTHERS_LONGEST }
    }
}

/// Asks all devices, and waits for each as long as it says something within `timeout`, but not for ever.
///
/// # Errors
/// The sockets cannot be listed.
pub fn ask_all(timeout: Duration) -> io::Result<Answers> {
    let sockets = std::fs::read("/proc/net/unix")?;
    // Others may put anything into their names.
    let sockets = String::from_utf8_lossy(&sockets);
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    // A connection that is being answered shows up under the same name.
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with(NAMES)).collect();
    let (mut answers, mut others) = (Answers::default(), BTreeMap::<u32, Vec<&str>>::new());
    for name in names {
        match meet(name) {
            Ok(Some((stream, peer, Trust::Full))) => {
                answers.add(peer, listen(stream, timeout, &mut Allowance::new(timeout)).map(|text| (text, None)));
            }
            Ok(Some((_, peer, Trust::OwnProcesses))) => others.entry(peer.uid).or_default().push(name),
            Ok(None) => {}
            Ok(Some((_, _, Trust::None))) | Err(_) => answers.silent += 1,
        }
    }
    let mut allowance = Allowance::of_others(timeout);
    for ((user, names), left) in others.iter().zip((1..=u32::try_from(others.len()).unwrap_or(u32::MAX)).rev()) {
        let mut part = allowance.part(left);
        let before = part.bytes;
        for name in names {
            match meet(name) {
                Ok(Some((stream, peer, _))) if peer.uid == *user => {
                    let text = listen(stream, timeout, &mut part);
                    answers.add(peer, text.map(|text| (text, Some(numbers(peer)))));
                }
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => answers.silent += 1,
            }
        }
        allowance.bytes = allowance.bytes.saturating_sub(before - part.bytes);
    }
    Ok(answers)
}

impl Answers {
    fn add(&mut self, peer: Credentials, answer: io::Result<(String, Option<Vec<u32>>)>) {
        match answer {
            Ok((text, pids)) => self.reports.push(Report { text, pids, pid: peer.pid }),
            Err(_) => self.silent += 1,
        }
    }
}

/// Connects to who has this name; `None` if it has gone meanwhile.
fn meet(name: &str) -> io::Result<Option<(UnixStream, Credentials, Trust)>> {
    let stream = match credentials::connect(name) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        stream => stream?,
    };
    let peer = Credentials::of(&stream)?;
    Ok(Some((stream, peer, trust(peer.uid, credentials::own_uid()))))
}

/// Reads an answer.
fn listen(mut stream: UnixStream, timeout: Duration, allowance: &mut Allowance) -> io::Result<String> {
    let (mut report, mut part) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        // It may say as little as keeps us waiting, or as much as fills our memory.
        let left = allowance.until.saturating_duration_since(Instant::now());
        if left.is_zero() || allowance.bytes == 0 || report.len() as u64 > allowance.each {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(timeout.min(left)))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => {
                report.extend_from_slice(part.get(..length).unwrap_or_default());
                allowance.bytes = allowance.bytes.saturating_sub(length as u64);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // SO_RCVTIMEO (socket(7)).
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    if report.is_empty() {
        // It hung up: not for us.
        return Err(ErrorKind::PermissionDenied.into());
    }
    String::from_utf8(report).map_err(|_| ErrorKind::InvalidData.into())
}

/// The numbers of a process of a user's; none if it is not his (any more), or in a PID namespace that cannot be seen from here.
fn numbers(Credentials { pid, uid }: Credentials) -> Vec<u32> {
    let Some(pid) = pid else { return Vec::new() };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    numbers_in(&status, pid, uid)
}

/// By the text of `/proc/PID/status` (proc_pid_status(5)).
fn numbers_in(status: &str, pid: u32, uid: u32) -> Vec<u32> {
    let row = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    // All four: the real one is still the user's in a program that has become root's.
    if row("Uid:") != [uid; 4] {
        return Vec::new();
    }
    std::iter::once(pid).chain(row("NSpid:")).collect()
}

/// The counters of the device in a report, which come before anything else that is called so.
pub fn counters(report: &str) -> impl Iterator<Item = (&str, u64)> {
    let inside =
        report.split_once("\"counters\":{").and_then(|(_, rest)| rest.split_once('}')).map(|(inside, _)| inside);
    inside.unwrap_or_default().split(',').filter_map(|counter| {
        let (name, value) = counter.split_once(':')?;
        Some((name.trim_matches('"'), value.parse().ok()?))
    })
}

/// A text among the members of a report's object, as it is written there (with its escapes).
#[must_use]
pub fn text<'a>(report: &'a str, member: &str) -> Option<&'a str> {
    // In a value the quotation mark would be escaped.
    let (_, rest) = report.split_once(&format!("\"{member}\":\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// Whether a member of a report's object is `true`.
#[must_use]
pub fn is_true(report: &str, member: &str) -> bool {
    report.contains(&format!("\"{member}\":true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_reports_are_cut_off() {
        use std::io::Write;
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};

        let name = format!("{NAMES}{}/slow", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let timeout = Duration::from_secs(60);
        let (stream, peer, trust) = meet(&name).unwrap().unwrap();
        assert_eq!((peer.pid, trust), (Some(std::process::id()), Trust::Full));
        let until = Instant::now() + Duration::from_millis(200);
        let mut allowance = Allowance { until, ..Allowance::new(timeout) };
        assert_eq!(listen(stream, timeout, &mut allowance).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(Instant::now() < until + timeout, "until it says nothing for a while");
        // It has used up what there was for the others as well.
        let (stream, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"here").unwrap();
        drop(far);
        assert_eq!(listen(stream, timeout, &mut allowance).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn long_reports_are_cut_off() {
        let (stream, mut far) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            use std::io::Write;
            while far.write_all(&[b' '; 1 << 16]).is_ok() {}
        });
        let mut allowance = Allowance { bytes: 1 << 20, ..Allowance::new(Duration::from_secs(5)) };
        assert!(listen(stream, Duration::from_secs(5), &mut allowance).is_err());
        writer.join().unwrap();
    }

    #[test]
    fn one_of_another_user_leaves_something_for_the_next() {
        use std::io::Write;
        let timeout = Duration::from_secs(600);
        let mut allowance = Allowance::of_others(timeout);
        let mut heard = |length: u64| {
            let (stream, mut far) = UnixStream::pair().unwrap();
            let writer = std::thread::spawn(move || far.write_all(&vec![b' '; usize::try_from(length).unwrap()]));
            let heard = listen(stream, timeout, &mut allowance).is_ok();
            let _ = writer.join().unwrap();
            heard
        };
        assert!(!heard(OTHERS_LONGEST_TOGETHER), "more than one may say");
        assert!(heard(1 << 20));
        assert!((0..OTHERS_LONGEST_TOGETHER >> 20).any(|_| !heard(1 << 20)), "all together have a limit too");
    }

    #[test]
    fn each_user_gets_a_share_of_the_allowance() {
        let mut allowance = Allowance::of_others(Duration::from_secs(600));
        let whole = (allowance.until, allowance.bytes);
        for left in [3, 2, 1] {
            let part = allowance.part(left);
            assert!(part.until <= whole.0 && part.bytes >= whole.1 / 3, "{left}: {}", part.bytes);
            assert!(left == 1 || part.until < whole.0, "{left}");
            allowance.bytes -= part.bytes;
        }
        assert_eq!(allowance.bytes, 0);
    }

    #[test]
    fn a_user_of_many_user_ids_leaves_others_their_part() {
        let allowance = Allowance::of_others(Duration::from_secs(600));
        let part = allowance.part(65536);
        assert_eq!(part.bytes, OTHERS_LONGEST_TOGETHER / u64::from(OTHERS_PARTS));
        assert!(part.until > Instant::now() + Duration::from_secs(60));
        assert_eq!(allowance.part(1).bytes, OTHERS_LONGEST_TOGETHER);
    }

    #[test]
    fn silent_devices_of_other_users_share_one_time() {
        let timeout = Duration::from_secs(60);
        let until = Instant::now() + Duration::from_millis(50);
        let mut allowance = Allowance { until, ..Allowance::of_others(timeout) };
        for _ in 0..3 {
            let (stream, _silent) = UnixStream::pair().unwrap();
            assert!(listen(stream, timeout, &mut allowance).is_err());
        }
        assert!(Instant::now() < until + timeout, "read(2) waits until all have had their time, not for each");
    }

    #[test]
    fn trust_by_user() {
        assert_eq!([trust(0, 0), trust(0, 7), trust(7, 7)], [Trust::Full; 3]);
        assert_eq!([trust(7, 8), trust(u32::MAX, 8)], [Trust::None; 2]);
        assert_eq!(trust(7, 0), Trust::OwnProcesses);
    }

    #[test]
    fn another_user_tells_of_his_own_processes() {
        const STATUS: &str = "Name:\tx\nPid:\t77\nUid:\t8\t8\t8\t8\nNSpid:\t77\t1\n";
        assert_eq!(numbers_in(STATUS, 77, 8), [77, 77, 1]);
        assert_eq!([numbers_in(STATUS, 77, 9), numbers_in("", 77, 8)], [[]; 2] as [[u32; 0]; 2]);
        for at in 0..4 {
            let mut uids = ["8"; 4];
            uids[at] = "0";
            assert!(numbers_in(&format!("Uid:\t{}\nNSpid:\t77\n", uids.join("\t")), 77, 8).is_empty(), "{uids:?}");
        }
        let (pid, uid) = (std::process::id(), credentials::own_uid());
        assert!(numbers(Credentials { pid: Some(pid), uid }).contains(&pid));
        assert!(numbers(Credentials { pid: None, uid }).is_empty(), "somebody who cannot be seen");
        let report = |pids| Report { text: String::new(), pids, pid: None };
        assert!(report(None).is_by(Some(5)) && report(Some(vec![77, 1])).is_by(Some(1)));
        assert!(!report(Some(vec![77, 1])).is_by(Some(5)) && !report(Some(vec![])).is_by(None));
        let pid = |pids, pid| Report { text: String::new(), pids, pid }.pid();
        assert_eq!(
            [pid(None, Some(5)), pid(Some(vec![5, 5, 1]), Some(5))],
            [Some(5); 2],
            "root's and this user's; his"
        );
        assert_eq!([pid(Some(vec![]), Some(5)), pid(None, None)], [None; 2], "somebody else's by now; unknown");
    }

    const REPORT: &str = r#"{"pid":7,"program":"\"device\":\"x","device":"urxe0","netdev":"lo","counters":{"rx_packets":5,"icrc_err":0},"qps":[{"qpn":1,"counters":{"rx_packets":9}}]}"#;

    #[test]
    fn members_of_a_report() {
        assert_eq!(counters(REPORT).collect::<Vec<_>>(), [("rx_packets", 5), ("icrc_err", 0)]);
        assert_eq!((text(REPORT, "device"), text(REPORT, "netdev")), (Some("urxe0"), Some("lo")));
    }

    #[test]
    fn malformed_reports_have_no_counters() {
        for text in ["", "{}", "\"counters\":{", "\"counters\":{}", "\"counters\":{\"a\":x,b,\"c\"}"] {
            assert_eq!(counters(text).count(), 0, "{text}");
        }
        assert_eq!(text("{\"device\":\"", "device"), None);
    }
}
