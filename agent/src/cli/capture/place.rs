//! Which agent has which pod. In: the command's words, and the endpoints of each agent. Out: a request for each agent that
//! has to do with the capture.

use std::net::IpAddr;

use serde_json::Value;

use super::Wanted;
use crate::capture::{PodRequest, Request, meant};
use crate::cli::traceflow::end::End;
use crate::failure::Failure;

/// A pod that an agent knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    name: String,
    ips: Vec<IpAddr>,
}

/// The pods of an agent's answer.
pub fn known(endpoints: &Value) -> Vec<Known> {
    let items = endpoints["items"].as_array().into_iter().flatten();
    items
        .filter_map(|item| {
            let namespace = item["metadata"]["namespace"].as_str().unwrap_or("default");
            let ips = item["spec"]["ips"].as_array().into_iter().flatten();
            Some(Known {
                name: format!("{namespace}/{}", item["metadata"]["name"].as_str()?),
                ips: ips.filter_map(|ip| ip.as_str()?.parse().ok()).collect(),
            })
        })
        .collect()
}

/// An end that is captured at.
struct Place {
    name: String,
    /// Agents that know it, and its addresses.
    agents: Vec<usize>,
    ips: Vec<IpAddr>,
}

/// The requests by agent. `agents`: the pods that each knows.
///
/// # Errors
/// Unknown pods, and what does not make sense together.
pub fn requests(wanted: &Wanted, agents: &[Vec<Known>]) -> Result<Vec<(usize, Request)>, Failure> {
    let End::Named { .. } = &wanted.source else {
        let line = format!("--source {}: an address has no interface; name a pod", wanted.source);
        return Err(Failure::Usage(vec![line]));
    };
    let source = place(&wanted.source, agents);
    let (destination, address) = match &wanted.destination {
        None => (None, None),
        Some(End::Ip(ip)) => (None, Some(ip.to_string())),
        Some(end) if *end == wanted.source => {
            return Err(Failure::Usage(vec![format!("--destination {end} is the source")]));
        }
        Some(end) => (Some(place(end, agents)), None),
    };
    let places: Vec<&Place> = [Some(&source), destination.as_ref()].into_iter().flatten().collect();
    if !wanted.wait {
        let unknown: Vec<&&Place> = places.iter().filter(|place| place.agents.is_empty()).collect();
        if !unknown.is_empty() {
            return Err(Failure::NotFound(
                unknown.into_iter().map(|place| not_found(place, agents)).collect(),
            ));
        }
    }
    let mut requests = Vec::new();
    for agent in 0..agents.len() {
        // A pod that nobody knows yet may appear anywhere.
        let here: Vec<&&Place> =
            places.iter().filter(|place| place.agents.is_empty() || place.agents.contains(&agent)).collect();
        let mut pods = Vec::new();
        for place in here {
            let other = places.iter().find(|other| other.name != place.name);
            let peers = match (other, &address) {
                _ if wanted.any_peer => None,
                (Some(other), _) => Some(peers(other, agents.len())?),
                (None, Some(address)) => Some(vec![address.clone()]),
                (None, None) => None,
            };
            pods.push(PodRequest { name: place.name.clone(), peers });
        }
        if !pods.is_empty() {
            requests.push((agent, request(wanted, pods)));
        }
    }
    Ok(requests)
}

fn request(wanted: &Wanted, pods: Vec<PodRequest>) -> Request {
    Request {
        pods,
        flow: wanted.flow.to_string(),
        direction: wanted.direction,
        snaplen: wanted.snaplen,
        duration_ms: wanted.duration.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        wait: wanted.wait,
    }
}

/// An agent finds the addresses of its own pods by itself, also of later ones; those of others have to be known.
fn peers(other: &Place, agents: usize) -> Result<Vec<String>, Failure> {
    if !other.ips.is_empty() {
        return Ok(other.ips.iter().map(ToString::to_string).collect());
    }
    if agents == 1 {
        return Ok(vec![other.name.clone()]);
    }
    let line =
        format!("the addresses of {} are not known yet; add --any-peer to capture without them", other.name);
    Err(Failure::Usage(vec![line]))
}

fn place(end: &End, agents: &[Vec<Known>]) -> Place {
    let name = end.to_string();
    let found = agents.iter().enumerate().filter_map(|(agent, pods)| {
        let pod = pods.iter().find(|pod| pod.name == name)?;
        Some((agent, pod.ips.clone()))
    });
    let (agents, ips): (Vec<usize>, Vec<Vec<IpAddr>>) = found.unzip();
    Place { name, agents, ips: ips.concat() }
}

fn not_found(place: &Place, agents: &[Vec<Known>]) -> String {
    let names: Vec<&str> = agents.iter().flatten().map(|pod| pod.name.as_str()).collect();
    let meant = meant(&place.name, &names);
    let end = if meant.is_empty() {
        "; podwire get endpoints lists pods, --wait takes one that comes later"
    } else {
        ""
    };
    format!("pod {} is not known{meant}{end}", place.name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        wanted: Wanted,
    }

    fn wanted(words: &[&str]) -> Wanted {
        Line::try_parse_from([&["capture"], words].concat()).expect("right use").wanted
    }

    fn agents() -> Vec<Vec<Known>> {
        let pod =
            |name: &str, ip: &str| Known { name: name.into(), ips: vec![ip.parse().expect("an address")] };
        vec![
            vec![pod("default/web-0", "10.0.1.5"), pod("default/web-1", "10.0.1.6")],
            vec![pod("shop/cart", "10.0.2.5")],
        ]
    }

    fn brief(words: &[&str]) -> Vec<(usize, Vec<String>)> {
        let requests = requests(&wanted(words), &agents()).expect("requests");
        let pod = |pod: &PodRequest| match &pod.peers {
            Some(peers) => format!("{}<>{}", pod.name, peers.join(",")),
            None => pod.name.clone(),
        };
        requests.iter().map(|(agent, request)| (*agent, request.pods.iter().map(pod).collect())).collect()
    }

    fn lines(words: &[&str]) -> String {
        match requests(&wanted(words), &agents()) {
            Err(Failure::NotFound(lines) | Failure::Usage(lines)) => lines.join("; "),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_agent_is_asked_for_its_own_pods() {
        assert_eq!(brief(&["-S", "web-0"]), [(0, vec!["default/web-0".into()])]);
        let both = vec!["default/web-0<>10.0.1.6".into(), "default/web-1<>10.0.1.5".into()];
        assert_eq!(brief(&["-S", "web-0", "-D", "web-1"]), [(0, both)]);
        let far = [(0, vec!["default/web-0<>10.0.2.5".into()]), (1, vec!["shop/cart<>10.0.1.5".into()])];
        assert_eq!(brief(&["-S", "web-0", "-D", "shop/cart"]), far);
        let any = [(0, vec!["default/web-0".into()]), (1, vec!["shop/cart".into()])];
        assert_eq!(brief(&["-S", "web-0", "-D", "shop/cart", "--any-peer"]), any);
        assert_eq!(
            brief(&["-S", "web-0", "-D", "192.0.2.1"]),
            [(0, vec!["default/web-0<>192.0.2.1".into()])]
        );
        let later = [(0, vec!["default/new".into()]), (1, vec!["default/new".into()])];
        assert_eq!(brief(&["-S", "new", "--wait"]), later);
    }

    #[test]
    fn unknown_pods_are_told_with_those_that_were_meant() {
        assert_eq!(lines(&["-S", "wbe-0"]), "pod default/wbe-0 is not known; did you mean \"web-0\"?");
        assert!(lines(&["-S", "zzz"]).ends_with("--wait takes one that comes later"));
        assert!(lines(&["-S", "10.0.0.1"]).contains("name a pod"));
        assert!(lines(&["-S", "web-0", "-D", "web-0"]).contains("is the source"));
        assert!(lines(&["-S", "web-0", "-D", "new", "--wait"]).contains("--any-peer"));
    }
}
