//! How figures depend on something: bandwidth on the size of messages, cost and memory on the number of queue pairs,
//! processes and simulated stacks, goodput on what the network loses, and how often a latency is exceeded. And how senders that
//! share a link, simulated, fill its queue over time.

use anyhow::{Context, Result};
use serde_json::json;
use urxe_sim::incast::{Algorithm, INTERVAL, Incast, SENDERS, Sample};
use urxe_tests::Host;

use crate::bare::median;
use crate::plot::{Axis, Chart, Curve, Scale};
use crate::programs::{Measurement, Ping, Variables};
use crate::suite::SELECTIVE_REPEAT;

/// Chart, and the name of its file.
#[derive(Debug)]
pub struct Picture {
    /// The file's name, without its end.
    pub name: &'static str,
    measure: fn(&Host, u32) -> Result<Chart>,
}

/// Curves of `make curves`.
pub const PICTURES: &[Picture] = &[
    Picture { name: "bandwidth-over-size", measure: over_size },
    Picture { name: "latency-distribution", measure: latencies },
    Picture { name: "bandwidth-over-queue-pairs", measure: over_queue_pairs },
    Picture { name: "cost-over-queue-pairs", measure: cost_over_queue_pairs },
    Picture { name: "memory-over-queue-pairs", measure: memory_over_queue_pairs },
    Picture { name: "cost-over-processes", measure: cost_over_processes },
    Picture { name: "memory-over-processes", measure: memory_over_processes },
    Picture { name: "cost-over-stacks", measure: cost_over_stacks },
    Picture { name: "memory-over-stacks", measure: memory_over_stacks },
    Picture { name: "rate-over-threads", measure: rate_over_threads },
    Picture { name: "goodput-over-loss", measure: over_loss },
    Picture { name: "queue-over-time", measure: queue_over_time },
    Picture {
        name: "rate-over-time-window",
        measure: |_, _| Ok(rate_over_time("Three senders with a window", Algorithm::Window)),
    },
    Picture {
        name: "rate-over-time-dcqcn",
        measure: |_, _| Ok(rate_over_time("Three senders with DCQCN", Algorithm::Dcqcn)),
    },
    Picture {
        name: "rate-over-time-swift",
        measure: |_, _| Ok(rate_over_time("Three senders with Swift", Algorithm::Swift)),
    },
];

impl Picture {
    /// Measures it, in so many rounds of which medians are drawn.
    pub fn measure(&self, host: &Host, rounds: u32) -> Result<Chart> {
        (self.measure)(host, rounds).with_context(|| format!("measuring {}", self.name))
    }
}

/// The numbers of a chart.
pub fn numbers(chart: &Chart) -> serde_json::Value {
    let curve = |curve: &Curve| json!({ "name": curve.name, "points": curve.points });
    json!({ "title": chart.title, "x": chart.x.label, "y": chart.y.label,
            "curves": chart.curves.iter().map(curve).collect::<Vec<_>>() })
}

/// Measures each `what` at each `place`, in turns; medians of all rounds.
fn sweep<W, P: Copy>(
    rounds: u32,
    whats: &[(&str, W)],
    places: &[P],
    x: impl Fn(P) -> f64,
    measure: impl Fn(&W, P) -> Result<f64>,
) -> Result<Vec<Curve>> {
    let mut values = vec![vec![Vec::new(); places.len()]; whats.len()];
    for _ in 0..rounds {
        for (at, place) in places.iter().enumerate() {
            for ((_, what), values) in whats.iter().zip(&mut values) {
                values[at].push(measure(what, *place)?);
            }
        }
    }
    let curve = |((name, _), values): (&(&str, W), Vec<Vec<f64>>)| Curve {
        name: (*name).to_owned(),
        points: places.iter().zip(values).map(|(place, values)| (x(*place), median(values))).collect(),
    };
    Ok(whats.iter().zip(values).map(curve).collect())
}

const SIZES: [u32; 8] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];

fn over_size(host: &Host, rounds: u32) -> Result<Chart> {
    let measure = |what: &Measurement, size| what.at(host, size);
    let whats = [
        ("ib_write_bw", Measurement::Perftest("ib_write_bw")),
        ("ib_send_bw", Measurement::Perftest("ib_send_bw")),
        ("ib_read_bw", Measurement::Perftest("ib_read_bw")),
        ("ib_write_bw, shared mem.", Measurement::SharedMemory("ib_write_bw")),
        ("TCP (iperf3)", Measurement::Tcp),
    ];
    let curves = sweep(rounds, &whats, &SIZES, f64::from, measure)?;
    let marks = SIZES.map(|size| (f64::from(size), bytes(size))).to_vec();
    Ok(Chart {
        title: "Bandwidth over the size of messages",
        x: Axis { label: "bytes of a message (TCP: of a write)", scale: Scale::Log, marks },
        y: Axis { label: "Gbit/s", scale: Scale::Linear, marks: Vec::new() },
        curves,
    })
}

fn bytes(size: u32) -> String {
    match size {
        0x10_0000.. => format!("{} MiB", size >> 20),
        1024.. => format!("{} KiB", size >> 10),
        _ => size.to_string(),
    }
}

/// For one in so many messages, the time that it exceeds is drawn.
const ONE_IN: [u32; 18] = [2, 3, 4, 5, 7, 10, 14, 20, 30, 50, 70, 100, 140, 200, 300, 500, 700, 1000];

fn latencies(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [
        ("bare UDP ping-pong", Ping::BareUdp),
        ("ib_write_lat", Ping::Perftest("ib_write_lat")),
        ("ib_send_lat", Ping::Perftest("ib_send_lat")),
        ("ib_write_lat, shared mem.", Ping::SharedMemory("ib_write_lat")),
    ];
    let mut curves = Vec::new();
    for (name, ping) in whats {
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.extend(ping.times(host)?);
        }
        times.sort_by(f64::total_cmp);
        curves.push(Curve { name: name.to_owned(), points: exceeded(&times) });
    }
    let marks = [(2.0, "1 in 2"), (10.0, "1 in 10"), (100.0, "1 in 100"), (1000.0, "1 in 1000")];
    Ok(Chart {
        title: "Latency of 8 bytes: what so many messages exceed",
        x: Axis {
            label: "messages that take longer",
            scale: Scale::Log,
            marks: marks.map(|(at, name)| (at, name.to_owned())).to_vec(),
        },
        y: Axis { label: "µs in one direction", scale: Scale::Log, marks: Vec::new() },
        curves,
    })
}

/// The time that one in so many exceeds. `times` are sorted.
fn exceeded(times: &[f64]) -> Vec<(f64, f64)> {
    let time = |one_in: u32| times.len().checked_sub(1 + times.len() / one_in as usize).and_then(|at| times.get(at));
    ONE_IN.iter().filter_map(|&one_in| Some((f64::from(one_in), *time(one_in)?))).collect()
}

const QUEUE_PAIRS: [u32; 7] = [1, 4, 16, 64, 256, 1000, 10_000];
const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const PROCESSES: [u32; 6] = [2, 4, 8, 16, 32, 64];
const STACKS: [u32; 5] = [10, 30, 100, 300, 1000];

fn over_queue_pairs(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [("WRITE of 64 KiB, in turn", Measurement::Own("queue-pairs", 0))];
    let (title, unit) = ("Bandwidth over queue pairs", "Gbit/s");
    over_number(host, rounds, title, &whats, ("queue pairs between two processes", &QUEUE_PAIRS), unit, Scale::Linear)
}

fn cost_over_queue_pairs(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [
        ("UDP", Measurement::Own("small-messages", 0)),
        ("shared memory", Measurement::OwnSharedMemory("small-messages", 0)),
    ];
    let (title, unit) = ("A WRITE of 8 bytes over queue pairs that take turns", "ns");
    over_number(host, rounds, title, &whats, ("queue pairs between two processes", &QUEUE_PAIRS), unit, Scale::Linear)
}

fn memory_over_queue_pairs(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [("connected, idle", Measurement::Own("idle-memory", 0))];
    let (title, unit) = ("Memory of a queue pair", "bytes");
    over_number(host, rounds, title, &whats, ("queue pairs in a process", &QUEUE_PAIRS), unit, Scale::Log)
}

fn cost_over_processes(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [
        ("each with each", Measurement::OwnSharedMemory("mesh", 0)),
        ("all with one", Measurement::OwnSharedMemory("star", 0)),
        ("each with each, UDP", Measurement::Own("mesh", 0)),
        ("all with one, UDP", Measurement::Own("star", 0)),
        ("each with each, polling", Measurement::OwnSharedMemory("polling-mesh", 0)),
    ];
    let (title, unit) = ("A WRITE of 64 bytes among processes", "ns of the machine");
    over_number(host, rounds, title, &whats, ("processes on one host", &PROCESSES), unit, Scale::Log)
}

fn memory_over_processes(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [
        ("each with each", Measurement::OwnSharedMemory("mesh", 1)),
        ("all with one", Measurement::OwnSharedMemory("star", 1)),
        ("each with each, UDP", Measurement::Own("mesh", 1)),
    ];
    let (title, unit) = ("Memory of a process that has talked to its peers", "KiB");
    over_number(host, rounds, title, &whats, ("processes on one host", &PROCESSES), unit, Scale::Log)
}

fn rate_over_threads(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [
        ("threads", Measurement::OwnSharedMemory("threads", 0)),
        ("processes", Measurement::OwnSharedMemory("processes", 0)),
        ("threads, UDP", Measurement::Own("threads", 0)),
        ("threads, UDP, no shards", Measurement::OwnUnsharded("threads", 0)),
        ("processes, UDP", Measurement::Own("processes", 0)),
    ];
    let (title, unit) = ("WRITEs of 8 bytes over threads with queue pairs of their own", "10^6 a second");
    over_number(host, rounds, title, &whats, ("threads, or processes of one thread", &THREADS), unit, Scale::Linear)
}

fn cost_over_stacks(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [("each with 4 and a hub", Measurement::Own("stacks", 0))];
    let (title, unit) = ("A message among simulated stacks", "ns of one processor");
    over_number(host, rounds, title, &whats, ("stacks in one simulation", &STACKS), unit, Scale::Linear)
}

fn memory_over_stacks(host: &Host, rounds: u32) -> Result<Chart> {
    let whats = [("with its buffers", Measurement::Own("stacks", 1))];
    let (title, unit) = ("Memory of a queue pair in a simulation", "bytes");
    over_number(host, rounds, title, &whats, ("stacks in one simulation", &STACKS), unit, Scale::Linear)
}

/// Figures over a number of things, which is named.
fn over_number(
    host: &Host,
    rounds: u32,
    title: &'static str,
    whats: &[(&str, Measurement)],
    (things, numbers): (&'static str, &[u32]),
    unit: &'static str,
    scale: Scale,
) -> Result<Chart> {
    let curves = sweep(rounds, whats, numbers, f64::from, |what, count| what.at(host, count))?;
    let marks = numbers.iter().map(|count| (f64::from(*count), count.to_string())).collect();
    Ok(Chart {
        title,
        x: Axis { label: things, scale: Scale::Log, marks },
        y: Axis { label: unit, scale, marks: Vec::new() },
        curves,
    })
}

/// Packets lost in 100 000.
const LOSSES: [u32; 8] = [0, 10, 30, 100, 300, 1000, 3000, 10_000];
/// Variables of ends that go back N, and of those that repeat selectively.
const GO_BACK: Variables = &[];
const REPEAT: Variables = &[SELECTIVE_REPEAT];

fn over_loss(host: &Host, rounds: u32) -> Result<Chart> {
    let percent = |loss: u32| f64::from(loss) / 1000.0;
    let whats = [
        ("ib_write_bw 1 MiB", ("ib_write_bw", GO_BACK)),
        ("ib_read_bw 1 MiB", ("ib_read_bw", GO_BACK)),
        ("ib_write_bw, selective", ("ib_write_bw", REPEAT)),
        ("ib_read_bw, selective", ("ib_read_bw", REPEAT)),
    ];
    let measure = |&(program, variables): &(&'static str, Variables), loss| {
        Measurement::Lossy(program, percent(loss), variables).at(host, 1 << 20)
    };
    let mut curves = sweep(rounds, &whats, &LOSSES, percent, measure)?;
    for curve in &mut curves {
        // The first is the goodput without losses.
        let lossless = curve.points.remove(0).1;
        curve.points.iter_mut().for_each(|(_, goodput)| *goodput /= lossless);
    }
    let marks = LOSSES[1..].iter().map(|loss| (percent(*loss), format!("{} %", percent(*loss)))).collect();
    Ok(Chart {
        title: "Goodput over what is lost",
        x: Axis { label: "packets lost, in each direction", scale: Scale::Log, marks },
        y: Axis { label: "of the goodput without losses", scale: Scale::Linear, marks: Vec::new() },
        curves,
    })
}

fn over_time(title: &'static str, unit: &'static str, curves: Vec<Curve>) -> Chart {
    Chart {
        title,
        x: Axis { label: "ms of virtual time", scale: Scale::Linear, marks: Vec::new() },
        y: Axis { label: unit, scale: Scale::Linear, marks: Vec::new() },
        curves,
    }
}

/// Points of samples in groups of so many, at the end of each group.
fn sampled(samples: &[Sample], of: usize, value: impl Fn(&[Sample]) -> f64) -> Vec<(f64, f64)> {
    let end = |group: usize| INTERVAL.as_secs_f64() * 1e3 * (group * of) as f64;
    (1..).zip(samples.chunks_exact(of)).map(|(group, samples)| (end(group), value(samples))).collect()
}

fn queue_over_time(_host: &Host, _rounds: u32) -> Result<Chart> {
    let unmarked = |algorithm| Incast { is_marking: false, ..Incast::new(algorithm) };
    let whats = [
        ("window, no marks", unmarked(Algorithm::Window)),
        ("window", Incast::new(Algorithm::Window)),
        ("dcqcn", Incast::new(Algorithm::Dcqcn)),
        ("swift", Incast::new(Algorithm::Swift)),
        ("swift, no marks", unmarked(Algorithm::Swift)),
    ];
    let longest = |samples: &[Sample]| samples.iter().map(|sample| sample.queue).max().unwrap_or(0) as f64;
    let curve = |(name, incast): &(&str, Incast)| Curve {
        name: (*name).to_owned(),
        points: sampled(&incast.run().samples, 8, longest),
    };
    let curves = whats.iter().map(curve).collect();
    Ok(over_time("Queue of 256 packets in front of a link that three senders share", "packets", curves))
}

fn rate_over_time(title: &'static str, algorithm: Algorithm) -> Chart {
    /// Samples of a point: 4 ms.
    const GROUP: usize = 16;
    let samples = Incast::new(algorithm).run().samples;
    let seconds = INTERVAL.as_secs_f64() * GROUP as f64;
    let rate = |at: usize| {
        move |group: &[Sample]| {
            let bytes: u64 = group.iter().map(|sample| sample.sent[at]).sum();
            bytes as f64 * 8.0 / seconds / 1e6
        }
    };
    let curve = |at| Curve { name: format!("sender {}", at + 1), points: sampled(&samples, GROUP, rate(at)) };
    over_time(title, "Mbit/s, from BTH to ICRC", (0..SENDERS).map(curve).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_drawn_at_the_end_of_their_group() {
        let samples: Vec<Sample> = (0..9).map(|queue| Sample { queue, sent: [0; SENDERS] }).collect();
        let points = sampled(&samples, 4, |group| group[3].queue as f64);
        assert_eq!(points, [(1.0, 3.0), (2.0, 7.0)]);
    }

    #[test]
    fn sweeps_draw_medians() -> Result<()> {
        let calls = std::cell::Cell::new(0.0);
        let curves = sweep(3, &[("a", 1.0), ("b", 2.0)], &[10, 20], f64::from, |what, place| {
            calls.set(calls.get() + 1.0);
            Ok(what * f64::from(place) + if calls.get() > 4.0 { 0.0 } else { 1000.0 })
        })?;
        assert_eq!(curves.len(), 2);
        assert_eq!(curves[1], Curve { name: "b".into(), points: vec![(10.0, 20.0), (20.0, 40.0)] });
        Ok(())
    }

    #[test]
    fn half_of_all_exceed_the_median() {
        let times: Vec<f64> = (0..10_000).map(f64::from).collect();
        let points = exceeded(&times);
        assert_eq!(points.first(), Some(&(2.0, 4999.0)));
        assert_eq!(points.last(), Some(&(1000.0, 9989.0)));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{points:?}");
        assert!(exceeded(&[]).is_empty());
    }

    #[test]
    fn sizes_have_names() {
        assert_eq!([64, 512, 4096, 1 << 20, 8 << 20].map(bytes), ["64", "512", "4 KiB", "1 MiB", "8 MiB"]);
    }
}
