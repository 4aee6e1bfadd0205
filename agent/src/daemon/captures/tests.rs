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

/// One that runs.
fn add(captures: &mut Captures, id: u64, until: Option<Instant>) -> watch::Receiver<Value> {
    let wanted = Wanted::read(request("", None)).expect("it makes sense");
    let readers = captures.take_readers(1);
    let (states, told) = watch::channel(Value::Null);
    let since = SystemTime::now();
    let running = Running { wanted, since, readers, until, ending: None, cause: None, states, account: None };
    captures.running.insert(id, running);
    told
}

#[test]
fn captures_that_end_together_are_waited_for_together() {
    let (mut captures, now) = (Captures::default(), Instant::now());
    let all: Vec<u64> = (1..=MOST as u64).collect();
    for id in &all {
        add(&mut captures, *id, None);
    }
    let stuck = |_| SessionCounters { handed_packets: 1, ..SessionCounters::default() };
    assert!(captures.begin_end(&all, None, now));
    assert!(captures.end_read(now, stuck).is_empty() && captures.are_ending());
    assert!(!captures.begin_end(&all, None, now + DRAIN), "asking again puts nothing off");
    assert_eq!(captures.end_read(now + DRAIN, stuck).len(), MOST);
    assert!(captures.is_empty());
}

#[test]
fn a_capture_whose_time_is_over_ends_whoever_reads_it() {
    let (mut captures, now) = (Captures::default(), Instant::now());
    let until = now + Duration::from_secs(2);
    add(&mut captures, 1, Some(until));
    add(&mut captures, 2, None);
    assert_eq!((captures.next_over(), captures.over(now)), (Some(until), vec![]));
    assert_eq!(captures.over(until), [1]);
    captures.begin_end(&[1], None, until);
    assert_eq!((captures.next_over(), captures.over(until)), (None, vec![]));
}

#[test]
fn what_nobody_has_any_more_ends() {
    let (worker, messages) = mpsc::channel();
    drop(Guard { worker, id: 3 });
    assert!(matches!(messages.try_recv(), Ok(Message::EndCapture { id: 3, answer: None })));
}

#[test]
fn one_that_ends_keeps_its_mirror_without_endpoints() {
    let mut captures = Captures::default();
    let told = add(&mut captures, 1, None);
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
    let now = Instant::now();
    assert!(captures.begin_end(&[1], None, now));
    assert!(endpoints(&captures, desired()).is_empty());
    assert_eq!(captures.end_read(now, |_| SessionCounters::default()), [(1, vec![1])]);
    assert!(captures.is_empty() && !captures.begin_end(&[1], None, now));
}
