//! `urxe status --metrics` as Prometheus reads it, and the Grafana dashboard that asks for it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use urxe_tests::verbs::{Op, Options, Pair, SendWr, Status};
use urxe_tests::{in_world, own_status};

const DASHBOARD: &str = include_str!("../../packaging/grafana/urxe.json");

/// Types and labels of metrics, by their names.
#[derive(Default)]
struct Metrics(BTreeMap<String, (String, BTreeSet<String>)>);

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Splits `name="value",…`; values may hold `\\`, `\"` and `\n`.
fn labels(text: &str) -> Result<BTreeMap<String, String>> {
    let (mut labels, mut rest) = (BTreeMap::new(), text);
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").with_context(|| format!("no label: {rest}"))?;
        ensure!(is_name(name), "no name of a label: {name}");
        let (mut value, mut letters) = (String::new(), after.char_indices());
        let end = loop {
            match letters.next().with_context(|| format!("no end of a value: {after}"))? {
                (end, '"') => break end,
                (_, '\\') => match letters.next() {
                    Some((_, letter @ ('\\' | '"' | 'n'))) => value.push(letter),
                    other => bail!("no escape: {other:?} in {after}"),
                },
                (_, letter) => value.push(letter),
            }
        };
        ensure!(labels.insert(name.to_owned(), value).is_none(), "twice: {name}");
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Ok(labels)
}

/// Reads the text exposition format 0.0.4, without what it would forgive.
fn read(text: &str) -> Result<Metrics> {
    let (mut metrics, mut seen) = (Metrics::default(), BTreeSet::new());
    let mut current = None::<String>;
    ensure!(text.ends_with('\n'), "no end of the last line");
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').with_context(|| line.to_owned())?;
            ensure!(is_name(name) && ["counter", "gauge"].contains(&kind), "{line}");
            ensure!(name.ends_with("_total") == (kind == "counter"), "a counter's name ends in _total: {line}");
            let new = metrics.0.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new())).is_none();
            ensure!(new, "samples of a metric stand together: {line}");
            current = Some(name.to_owned());
            continue;
        }
        let (series, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        value.parse::<f64>().with_context(|| line.to_owned())?;
        ensure!(seen.insert(series.to_owned()), "twice: {line}");
        let (name, rest) = series.split_once('{').with_context(|| line.to_owned())?;
        ensure!(current.as_deref() == Some(name), "not below its TYPE: {line}");
        let own = labels(rest.strip_suffix('}').with_context(|| line.to_owned())?).with_context(|| line.to_owned())?;
        metrics.0.entry(name.to_owned()).or_default().1.extend(own.into_keys());
    }
    Ok(metrics)
}

/// Words of a query that are names: of metrics, functions and labels.
fn words(query: &str) -> impl Iterator<Item = &str> {
    query.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).filter(|word| !word.is_empty())
}

fn queries(dashboard: &Value) -> Vec<&str> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.filter_map(|target| target["expr"].as_str()).collect()
}

/// Metrics of a pair of queue pairs, one of which has had trouble.
fn of_a_live_device() -> Result<String> {
    let Pair { near, far } = &Pair::new(&Options::default())?;
    let (local, remote) = (near.region(4096)?, far.region(4096)?);
    let refused = SendWr::new(Op::Write(remote.at(4000)), &[local.sge(0, 1024)]);
    ensure!(near.complete(&refused)?.status == Status::REM_ACCESS_ERR);
    own_status(&["--metrics"])
}

#[test]
fn prometheus_reads_the_metrics() {
    in_world(|| {
        let text = of_a_live_device()?;
        let metrics = read(&text)?;
        let of = |name: &str| metrics.0.get(name).with_context(|| format!("no {name}:\n{text}"));
        ensure!(of("urxe_tx_bytes_total")?.0 == "counter" && of("urxe_qp_window")?.0 == "gauge");
        ensure!(of("urxe_qp_sent_nak_remote_access_total")?.1.contains("qpn"));
        Ok(())
    });
}

#[test]
fn a_strict_reader_is_strict() {
    for wrong in [
        "x 1\n",
        "# TYPE x gauge\nx{} 1",
        "# TYPE x_total gauge\n",
        "# TYPE x gauge\nx{a=\"1\"} one\n",
        "# TYPE x gauge\nx{a=\"1\"} 1\nx{a=\"1\"} 2\n",
        "# TYPE x gauge\ny{a=\"1\"} 1\n",
        "# TYPE x gauge\nx{a=\"\\t\"} 1\n",
        "# TYPE x gauge\n# TYPE y gauge\n# TYPE x gauge\n",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    assert_eq!(labels("a=\"1\\\"\",b=\"\"").unwrap().into_keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn the_dashboard_asks_for_metrics_that_are_there() {
    in_world(|| {
        let metrics = read(&of_a_live_device()?)?;
        let dashboard: Value = serde_json::from_str(DASHBOARD)?;
        let queries = queries(&dashboard);
        ensure!(queries.len() > 20, "{} queries", queries.len());
        for query in queries {
            let names: Vec<&str> = words(query).filter(|word| word.starts_with("urxe_")).collect();
            ensure!(!names.is_empty(), "no metric of urxe's: {query}");
            for name in names {
                let (kind, labels) = metrics.0.get(name).with_context(|| format!("{name} is not exported: {query}"))?;
                ensure!((kind == "counter") == query.contains("rate("), "counters have rates, gauges values: {query}");
                let grouped = query.split_once("by (").and_then(|(_, rest)| rest.split_once(')'));
                let grouped = grouped.map_or("", |(labels, _)| labels);
                for label in words(grouped).chain(["device", "process"]) {
                    ensure!(labels.contains(label), "{name} has no label {label}: {query}");
                }
            }
        }
        Ok(())
    });
}

/// Members that Grafana wants in a dashboard that is imported (its JSON model).
#[test]
fn the_dashboard_is_one() -> Result<()> {
    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    for (member, is_right) in [
        ("title", dashboard["title"].is_string()),
        ("uid", dashboard["uid"].as_str().is_some_and(|uid| uid.len() <= 40)),
        ("id", dashboard["id"].is_null()),
        ("schemaVersion", dashboard["schemaVersion"].as_u64() >= Some(36)),
        ("time", dashboard["time"]["from"].is_string() && dashboard["time"]["to"].is_string()),
        ("templating", dashboard["templating"]["list"].is_array()),
        ("annotations", dashboard["annotations"]["list"].is_array()),
    ] {
        ensure!(is_right, "{member}: {}", dashboard[member]);
    }
    let variables = dashboard["templating"]["list"].as_array().into_iter().flatten();
    let variables: BTreeSet<&str> = variables.filter_map(|variable| variable["name"].as_str()).collect();
    let (mut ids, mut covered) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().context("no panels")? {
        let title = panel["title"].as_str().context("no title")?;
        ensure!(ids.insert(panel["id"].as_u64().context("no id")?), "{title}: another panel has its id");
        let at = |name: &str| panel["gridPos"][name].as_u64().with_context(|| format!("{title}: no {name}"));
        let (x, y, w, h) = (at("x")?, at("y")?, at("w")?, at("h")?);
        ensure!(w > 0 && h > 0 && x + w <= 24, "{title}: outside");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            ensure!(covered.insert(place), "{title}: over another one");
        }
        if panel["type"] == "row" {
            continue;
        }
        ensure!(["timeseries", "stat"].iter().any(|kind| panel["type"] == *kind), "{title}: {}", panel["type"]);
        ensure!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}: no unit");
        let targets = panel["targets"].as_array().with_context(|| format!("{title}: no queries"))?;
        let names: BTreeSet<_> = targets.iter().filter_map(|target| target["refId"].as_str()).collect();
        ensure!(!targets.is_empty() && names.len() == targets.len(), "{title}: queries need names of their own");
        for target in targets {
            let source = &target["datasource"];
            ensure!(source["type"] == "prometheus" && source["uid"] == "${datasource}", "{title}: {source}");
            let query = target["expr"].as_str().with_context(|| format!("{title}: no query"))?;
            for variable in query.split('$').skip(1).filter_map(|rest| words(rest).next()) {
                let known = variables.contains(variable) || variable == "__rate_interval";
                ensure!(known, "{title}: there is no ${variable}");
            }
            for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
                ensure!(query.matches(open).count() == query.matches(close).count(), "{title}: {query}");
            }
        }
    }
    Ok(())
}
