#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use podwire_datapath::Endpoint;
use podwire_datapath::compile::Rule;

use super::*;
use crate::capture::{Direction as Way, PodRequest, Request};

fn request(flow: &str, peers: Option<&[&str]>) -> Request {
    Request {
        pods: vec![PodRequest {
            name: "default/a".into(),
            peers: peers.map(|peers| peers.iter().map(|peer| (*peer).to_owned()).collect()),
        }],
        flow: flow.into(),
        direction: Way::Both,
        snaplen: None,
        duration_ms: None,
        wait: false,
    }
}

fn desired() -> Desired {
    let endpoint = |name: &str, ip: &str| Endpoint {
        name: name.into(),
        ips: vec![ip.parse().expect("an address")],
        ..Endpoint::default()
    };
    Desired {
        endpoints: vec![endpoint("default/a", "10.0.0.1"), endpoint("default/b", "10.0.0.2")],
        ..Desired::default()
    }
}

fn rules(flow: &str, peers: Option<&[&str]>) -> Option<Vec<Rule>> {
    let wanted = Wanted::read(request(flow, peers)).expect("it makes sense");
    wanted.rules(&wanted.request.pods[0], &desired())
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let wrong = |change: fn(&mut Request)| {
        let mut request = request("", None);
        change(&mut request);
        Wanted::read(request).map(drop).expect_err("nonsense")
    };
    assert_eq!(wrong(|request| request.pods.clear()), "pods: allowed: 1 to 16");
    assert_eq!(
        wrong(|request| request.pods.push(request.pods[0].clone())),
        "pods: default/a stands there twice"
    );
    assert_eq!(wrong(|request| request.snaplen = Some(13)), "snaplen: allowed: 14 or more");
    assert_eq!(wrong(|request| request.duration_ms = Some(0)), "durationMs: allowed: 1 or more");
    assert!(wrong(|request| request.flow = "tpc".into()).starts_with("flow: column 1: unknown word"));
}

#[test]
fn a_flow_has_answers_and_peers() {
    let both = rules("tcp,tcp_dst=80", None).expect("rules");
    assert_eq!(
        (both.len(), &both[0].destination_ports, &both[1].source_ports),
        (2, &vec![80..=80], &vec![80..=80])
    );
    assert_eq!(rules("icmp", None).map(|rules| rules.len()), Some(1), "its own answer");
    let peers = |peers| rules("", Some(peers)).map(|rules| rules[0].peer.clone().expect("peers").cidrs);
    assert_eq!(peers(&["10.9.9.9", "default/b"]).map(|cidrs| cidrs.len()), Some(2));
    assert_eq!(peers(&["default/later"]), None, "nobody matches yet");
}

#[test]
fn only_what_rules_cannot_say_is_looked_at() {
    let filters = |flow: &str| Wanted::read(request(flow, None)).expect("it makes sense").filters;
    assert!(filters("tcp,tcp_dst=80").accept(&[]), "the classifier has said it all");
    assert!(!filters("tcp,nw_ttl=3").accept(&[0; 60]));
}

#[test]
fn one_that_ends_keeps_its_mirror_without_endpoints() {
    let mut captures = Captures::default();
    let wanted = Wanted::read(request("", None)).expect("it makes sense");
    let readers = captures.take_readers(1);
    let (states, told) = watch::channel(Value::Null);
    let (account, _end) = oneshot::channel();
    let running = Running { wanted, since: SystemTime::now(), readers, ending: false, states, account };
    captures.running.insert(1, running);
    let endpoints = |captures: &Captures, mut desired: Desired| {
        captures.add_to(&mut desired);
        let [mirror] = &desired.mirrors[..] else { panic!("{:?}", desired.mirrors) };
        assert_eq!(
            (mirror.name.as_str(), &mirror.target),
            ("capture 1 default/a", &Target::Reader { number: 1 })
        );
        mirror.endpoints.clone()
    };
    assert_eq!(endpoints(&captures, desired()), ["default/a"]);
    assert!(endpoints(&captures, Desired::default()).is_empty(), "the pod is not there");
    captures.tell(&Applied::default());
    assert!(captures.is_waiting() && told.has_changed().expect("it runs"));
    captures.begin_end(1).expect("it runs");
    assert!(endpoints(&captures, desired()).is_empty());
    captures.end(1, &[SessionCounters::default()], None);
    assert!(captures.is_empty() && captures.begin_end(1).is_none());
}
