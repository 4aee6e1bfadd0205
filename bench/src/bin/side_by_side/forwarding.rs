//! From pod to pod, on one node and between two: podwire's own forwarding, and what Linux has. Runs alternate between
//! the ways; both ends share this machine's processors, so a way that takes less time leaves more to them.

mod ping_pong;
mod side;

use std::time::Duration;

use anyhow::Result;
use podwire_harness::Iperf;
use serde::Serialize;

use self::ping_pong::{Carrier, PingPong};
use self::side::{Side, WAYS};
use crate::target::Target;
use podwire_bench::spread::Spread;

/// Where the ends of a stream run. Left to itself the scheduler puts them on one processor or on two as it likes, and
/// that is what would be measured.
const APART: [usize; 2] = [0, 1];

/// How it is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Of one TCP stream.
    pub bytes: u64,
    /// Messages there and back, over TCP and over UDP.
    pub exchanges: usize,
}

/// A figure of each round, and in short.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    pub spread: Spread,
    pub samples: Vec<f64>,
}

/// A row of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    /// On one node, or between two.
    pub way: &'static str,
    pub is_podwire: bool,
    /// Gbit/s.
    pub rate: Figure,
    /// There and back, microseconds.
    pub tcp_p50: Figure,
    pub tcp_p99: Figure,
    pub udp_p50: Figure,
    pub udp_p99: Figure,
    /// Segments sent again, all runs together.
    pub retransmits: u64,
}

/// A way that does not stand.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    pub name: String,
    pub why: String,
}

/// Which figure of a row.
type Of = fn(&Row) -> &Figure;

/// Measures. Also says which ways are left out, and why.
///
/// # Errors
/// When a way that stands fails.
pub fn measure(plan: Plan) -> Result<(Vec<Row>, Vec<LeftOut>)> {
    let (mut sides, mut rows, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
    for way in &WAYS {
        match Side::new(way) {
            Ok(side) => {
                rows.push(Row::new(&side));
                sides.push(side);
            }
            Err(error) => {
                let name = format!("{}: {}", way.way, way.name);
                left_out.push(LeftOut { name, why: one_line(&error) });
            }
        }
    }
    // One round more, which warms up and is not counted.
    for round in 0..=plan.rounds {
        for turn in 0..rows.len() {
            let index = (turn + round) % rows.len();
            let run = Run::of(&sides[index], plan)?;
            if round > 0 {
                rows[index].add(&run);
            }
        }
    }
    rows.iter_mut().for_each(Row::finish);
    Ok((rows, left_out))
}

/// What it says first; the rest is a log.
fn one_line(error: &anyhow::Error) -> String {
    let said = format!("{error:#}");
    let told = said.lines().find(|line| line.starts_with("error: ")).or_else(|| said.lines().next());
    told.unwrap_or_default().to_owned()
}

struct Run {
    rate: f64,
    retransmits: u64,
    tcp: [f64; 2],
    udp: [f64; 2],
}

impl Run {
    fn of(side: &Side, plan: Plan) -> Result<Self> {
        let (from, to) = side.ends()?;
        let destination = to.v4.clone();
        let stream = Iperf {
            destination: destination.clone(),
            port: 5201,
            bytes: plan.bytes,
            udp_rate: None,
            cpus: Some(APART),
        };
        let report = stream.run(&from.netns, &to.netns)?;
        let talk = |carrier| {
            let talk = PingPong { destination: destination.clone(), carrier, exchanges: plan.exchanges };
            talk.run(&from.netns, &to.netns)
        };
        let (tcp, udp) = (talk(Carrier::Tcp)?, talk(Carrier::Udp)?);
        Ok(Self {
            rate: report.bits_per_second / 1e9,
            retransmits: report.retransmits,
            tcp: percentiles(tcp),
            udp: percentiles(udp),
        })
    }
}

/// The median and the 99th percentile, microseconds.
fn percentiles(mut times: Vec<Duration>) -> [f64; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| {
        let place = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    })
}

impl Figure {
    fn finish(&mut self) {
        self.spread = Spread::of(self.samples.iter().copied());
    }
}

impl Row {
    fn new(side: &Side) -> Self {
        let (name, way, is_podwire) = (side.way.name, side.way.way, side.way.is_podwire());
        let [rate, tcp_p50, tcp_p99, udp_p50, udp_p99] = <[Figure; 5]>::default();
        Self { name, way, is_podwire, rate, tcp_p50, tcp_p99, udp_p50, udp_p99, retransmits: 0 }
    }

    fn figures(&mut self) -> [&mut Figure; 5] {
        [&mut self.rate, &mut self.tcp_p50, &mut self.tcp_p99, &mut self.udp_p50, &mut self.udp_p99]
    }

    fn add(&mut self, run: &Run) {
        let ([tcp_p50, tcp_p99], [udp_p50, udp_p99]) = (run.tcp, run.udp);
        let values = [run.rate, tcp_p50, tcp_p99, udp_p50, udp_p99];
        self.figures().into_iter().zip(values).for_each(|(figure, value)| figure.samples.push(value));
        self.retransmits += run.retransmits;
    }

    fn finish(&mut self) {
        self.figures().into_iter().for_each(Figure::finish);
    }
}

/// podwire by the fastest rival, of the same round, for each way and figure.
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let mut targets = Vec::new();
    for own in rows.iter().filter(|row| row.is_podwire) {
        let rivals = || rows.iter().filter(|row| row.way == own.way && !row.is_podwire);
        let median = |row: &Row, of: Of| of(row).spread.median;
        let figures: [(&str, Of, bool); 3] = [
            ("TCP rate", |row| &row.rate, false),
            ("TCP round trip, median", |row| &row.tcp_p50, true),
            ("UDP round trip, median", |row| &row.udp_p50, true),
        ];
        for (what, of, at_most) in figures {
            let order = |one: &&Row, other: &&Row| {
                let order = median(one, of).total_cmp(&median(other, of));
                if at_most { order.reverse() } else { order }
            };
            let Some(rival) = rivals().max_by(order) else { continue };
            let pairs = of(own).samples.iter().zip(&of(rival).samples);
            targets.push(Target {
                what: format!("{}: {what}, {} / {}", own.way, own.name, rival.name),
                ratio: Spread::of(pairs.map(|(own, rival)| own / rival)),
                bound: Some(1.0),
                at_most,
            });
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, is_podwire: bool, rate: f64, time: f64) -> Row {
        let figure = |value: f64| Figure { spread: Spread::of([value]), samples: vec![value] };
        let [tcp_p99, udp_p50, udp_p99] = [time; 3].map(figure);
        let (rate, tcp_p50) = (figure(rate), figure(time));
        Row { name, way: "one node", is_podwire, rate, tcp_p50, tcp_p99, udp_p50, udp_p99, retransmits: 0 }
    }

    #[test]
    fn the_fastest_rival_is_the_measure() {
        let rows =
            [row("a", false, 10.0, 20.0), row("b", false, 20.0, 40.0), row("podwire", true, 30.0, 10.0)];
        let targets = targets(&rows);
        let ratios: Vec<f64> = targets.iter().map(|target| target.ratio.median).collect();
        assert_eq!(ratios, [1.5, 0.5, 0.5]);
        assert!(targets[0].what.ends_with("podwire / b") && targets[1].what.ends_with("podwire / a"));
    }

    #[test]
    fn percentiles_of_a_hundred() {
        let times = (0..100).rev().map(Duration::from_micros).collect();
        assert_eq!(percentiles(times), [50.0, 99.0]);
        assert!(percentiles(Vec::new())[0].is_nan());
    }
}
