//! Stateful policies: the direction of the connection decides, and its replies go along.

use anyhow::Result;
use podwire_datapath::compile::Rule;
use podwire_datapath::core::abi::Direction;
use podwire_datapath::{Hook, Mirror, Redirect};
use podwire_harness::{Page, Scratch, Topology};
use podwire_tests::node::Node;
use podwire_tests::wish::{device, mirror, mirrors, redirect, redirects};

/// TCP, with port 8080 on either side: both a connection's requests and its replies match it.
fn web() -> Vec<Rule> {
    vec![Rule { protocol: Some(6), either_ports: vec![8080..=8080], ..Rule::default() }]
}

fn fetch(scene: &Topology, [client, server]: [usize; 2]) -> Result<()> {
    let (client, server) = (&scene.pods[client], &scene.pods[server]);
    for address in [&server.v4, &server.v6] {
        Page { address: address.clone(), port: 8080, bytes: 3000 }.fetch(&client.netns, &server.netns)?;
    }
    Ok(())
}

/// What the first pod's mirror counts while it asks, and while it is asked.
fn counted(direction: Direction, stateful: bool) -> Result<[u64; 2]> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("tap0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let wish = Mirror {
        directions: vec![direction],
        rules: web(),
        stateful,
        ..mirror("m", &scene.pods[0], device("tap0"))
    };
    node.apply(&mirrors(&scene, vec![wish]))?;
    let mut counts = [0; 2];
    for (count, pods) in counts.iter_mut().zip([[0, 1], [1, 0]]) {
        let before = scene.node.counter(&out, "rx", "packets")?;
        fetch(&scene, pods)?;
        // Captures end a moment after the page: the last acknowledgement.
        std::thread::sleep(std::time::Duration::from_millis(100));
        *count = scene.node.counter(&out, "rx", "packets")? - before;
    }
    assert_eq!(node.policy("m")?.matched_packets, counts[0] + counts[1]);
    Ok(counts)
}

/// Connections that the pod opens are Egress, both directions of them; those that it serves are Ingress.
#[test]
fn root_a_connection_has_the_direction_of_its_opener() -> Result<()> {
    let [asked, served] = counted(Direction::Egress, true)?;
    // A handshake, a request, an answer, the end: ten packets or so for each family.
    assert!(asked >= 16, "{asked}");
    assert_eq!(served, 0);
    let [asked, served] = counted(Direction::Ingress, true)?;
    assert_eq!(asked, 0);
    assert!(served >= 16, "{served}");
    Ok(())
}

/// Without it each packet counts by its own direction, whoever opened the connection.
#[test]
fn root_a_packet_has_its_own_direction() -> Result<()> {
    for direction in Direction::ALL {
        let [asked, served] = counted(direction, false)?;
        assert!(asked >= 8 && served >= 8, "{direction:?}: {asked} {served}");
    }
    Ok(())
}

/// A UDP answer belongs to the question; a question from the other side is another connection.
#[test]
fn root_answers_of_udp_and_icmp_go_along() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("tap0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let wish = Mirror {
        directions: vec![Direction::Egress],
        rules: [1, 58].map(|number| Rule { protocol: Some(number), ..Rule::default() }).to_vec(),
        stateful: true,
        ..mirror("m", &scene.pods[0], device("tap0"))
    };
    node.apply(&mirrors(&scene, vec![wish]))?;
    let [first, second] = &scene.pods[..] else { unreachable!("two pods") };
    let before = scene.node.counter(&out, "rx", "packets")?;
    assert_eq!(first.netns.ping(&second.v4, 10, 56)?, 10);
    assert_eq!(scene.node.counter(&out, "rx", "packets")? - before, 20, "requests and replies");
    Ok(())
}

/// A redirect of connections sends both directions through the tool, whichever side the rule names.
#[test]
fn root_a_stateful_redirect_takes_both_directions() -> Result<()> {
    let (scene, scratch) = (Topology::new()?, Scratch::new()?);
    let out = scene.local_device("target0", 1500)?;
    let node = Node::open(&scene.node, &scratch, Hook::Auto)?;
    let to_server = Rule { protocol: Some(6), destination_ports: vec![8080..=8080], ..Rule::default() };
    let wish = Redirect {
        directions: vec![Direction::Egress],
        rules: vec![to_server],
        stateful: true,
        ..redirect("tool", &scene.pods[0], device("target0"), device(&out))
    };
    node.apply(&redirects(&scene, vec![wish]))?;
    fetch(&scene, [0, 1])?;
    let counters = node.policy("tool")?;
    assert_eq!(counters.redirected_packets, counters.returned_packets, "{counters:?}");
    for direction in Direction::ALL {
        let endpoint = node.endpoint("default/web-0", direction)?;
        assert!(endpoint.redirected_packets >= 8, "{direction:?}: {endpoint:?}");
    }
    let before = node.policy("tool")?;
    fetch(&scene, [1, 0])?;
    assert_eq!(node.policy("tool")?, before, "a connection from the other side");
    Ok(())
}
