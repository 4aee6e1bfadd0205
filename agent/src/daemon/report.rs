//! What became of the policies on this node, for their status at the API server. In: what views show. Out: reports.

use podwire_datapath::object::{Object, ObjectSet};
use serde_json::{Value, json};

use super::store::Objects;
use super::view::Known;
use crate::kubernetes::{EgressReport, Report, Subject};

/// A report of each policy in `set`, and of each that was left out.
pub fn reports(known: &Known, objects: &Objects) -> Vec<Report> {
    let left_out = objects
        .left_out
        .iter()
        .filter_map(|(located, why)| Some(Report::refused(Subject::of_located(located)?, why)));
    in_force(known, &objects.set).chain(left_out).collect()
}

fn in_force<'a>(known: &'a Known, set: &'a ObjectSet) -> impl Iterator<Item = Report> + 'a {
    set.iter().filter_map(|located| {
        let subject = Subject::of_located(located)?;
        match &located.object {
            Object::TrafficControl(policy) => {
                Some(of_traffic_control(subject, &known.policy(&policy.metadata.name)))
            }
            Object::Egress(egress) => Some(of_egress(subject, &known.egress(&egress.metadata.name))),
            _ => None,
        }
    })
}

fn of_traffic_control(subject: Subject, status: &Value) -> Report {
    let problems: Vec<&str> =
        status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let reasons = [&status["reason"], &status["targetProblem"], &status["returnProblem"]];
    let reasons: Vec<&str> = reasons.into_iter().filter_map(Value::as_str).chain(problems).collect();
    let entry = json!({
        "inForce": status["inForce"],
        "state": status["state"],
        "reason": (!reasons.is_empty()).then(|| reasons.join("; ")),
        "endpoints": status["endpointCount"],
        "target": status["target"],
    });
    let counts = json!({
        "packets": status["matched"]["packets"],
        "bytes": status["matched"]["bytes"],
        "lost": status["copies"]["lostTotal"],
    });
    Report { subject, entry, counts, egress: None }
}

fn of_egress(subject: Subject, status: &Value) -> Report {
    let entry = json!({
        "inForce": status["inForce"],
        "state": status["state"],
        "reason": status["reason"],
        "endpoints": status["endpointCount"],
    });
    let counts =
        json!({"packets": status["packets"], "bytes": status["bytes"], "lost": status["droppedTotal"]});
    let here = status["here"] == json!(true);
    let dropping = matches!(status["state"].as_str(), Some("Dropping" | "NotInForce"));
    let egress = here.then(|| EgressReport {
        ip: status["egressIPs"][0].as_str().unwrap_or_default().to_owned(),
        problem: dropping.then(|| status["reason"].as_str().unwrap_or_default().to_owned()),
    });
    Report { subject, entry, counts, egress }
}
