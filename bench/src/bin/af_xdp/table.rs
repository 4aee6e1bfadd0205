//! The tables.
#![allow(clippy::print_stdout, reason = "the result is what is printed")]

use podwire_bench::spread::Spread;

use crate::{loss as losses, rx as receiving, tx as sending};

fn median(values: &[f64]) -> f64 {
    Spread::of(values.iter().copied()).median
}

/// The table of what is received.
pub fn rx(rows: &[receiving::Row], floor: f64) {
    println!(
        "{:<10} {:<30} {:>8} {:>8} {:>8} {:>7} {:>9} {:>10} {:>10}",
        "WHO", "HOW", "P25", "PER-SEC", "P75", "LOST-%", "LET-GO", "KERNEL-NS", "WORKER-NS"
    );
    let ways = [
        ("two processors, all it takes", (|row| &row.burst) as fn(&receiving::Row) -> &receiving::Figure),
        ("one processor, all it takes", |row| &row.flood),
        ("one processor, at the offer", |row| &row.steady),
    ];
    for (how, figure) in ways {
        for row in rows {
            let figure = figure(row);
            let rate = Spread::of(figure.rates.iter().copied());
            println!(
                "{:<10} {how:<30} {:>8.0} {:>8.0} {:>8.0} {:>7.2} {:>9} {:>10.0} {:>10.0}",
                row.name,
                rate.p25,
                rate.median,
                rate.p75,
                figure.lost(),
                figure.let_go,
                median(&figure.kernel),
                median(&figure.worker)
            );
        }
    }
    println!(
        "\nThe same bursts dropped by an XDP program, no AF_XDP: {floor:.0} ns of the sending processor a packet."
    );
}

/// The table of what is sent.
pub fn tx(rows: &[sending::Row]) {
    println!("{:<34} {:>9} {:>9} {:>9} {:>10}", "WHO", "P25", "PER-SEC", "P75", "WORK-NS");
    for row in rows {
        let rate = Spread::of(row.rates.iter().copied());
        println!(
            "{:<34} {:>9.0} {:>9.0} {:>9.0} {:>10.0}",
            row.name,
            rate.p25,
            rate.median,
            rate.p75,
            median(&row.work)
        );
    }
}

/// The table of what is lost.
pub fn loss(rows: &[losses::Row]) {
    println!(
        "{:<36} {:>9} {:>10} {:>10} {:>7} {:>9} {:>10} {:>11}",
        "COMMAND", "OFFER/S", "SENT", "KEPT", "LOST-%", "KEPT/S", "KERNEL-NS", "COMMAND-NS"
    );
    for row in rows {
        for cell in &row.cells {
            println!(
                "{:<36} {:>9} {:>10} {:>10} {:>7.2} {:>9.0} {:>10.0} {:>11.0}",
                row.name,
                cell.offer,
                cell.sent,
                cell.kept,
                cell.lost(),
                median(&cell.rates),
                median(&cell.kernel),
                median(&cell.command)
            );
        }
    }
    println!();
    for percent in losses::EQUAL {
        for row in rows {
            let rounds = row.cells.first().map_or(0, |cell| cell.rates.len());
            let kept: Vec<(f64, bool)> =
                (0..rounds).filter_map(|round| losses::kept_at(row, percent, round)).collect();
            let reached = kept.iter().all(|(_, reached)| *reached);
            let kept = median(&kept.iter().map(|(kept, _)| *kept).collect::<Vec<_>>());
            let sign = if reached { "" } else { "at least " };
            println!("kept per second at {percent:>2} % loss: {:<36} {sign}{kept:.0}", row.name);
        }
    }
}
