//! Devices, routes, neighbours, addresses, MTU: `ip` sees what was wished, and nothing of others changes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use podwire_harness::{Capture, NetNs};

use crate::host::{address, mtu, overlay, routes};
use crate::netdev::Netdev;

#[test]
fn root_overlay_and_routes_are_as_wished_and_go() {
    let node = NetNs::new("host").unwrap();
    node.ip(&["link", "add", "theirs", "type", "vxlan", "id", "7", "dstport", "8473", "dev", "lo"]).unwrap();
    node.ip(&["link", "set", "theirs", "up"]).unwrap();
    node.enter(|| {
        let netdev = Netdev::open()?;
        let mut wish = overlay::Wish { name: "pw-overlay".into(), port: 8472, mtu: 1450 };
        let first = overlay::ensure(&netdev, &wish)?;
        assert_eq!(overlay::ensure(&netdev, &wish)?, first);
        wish.mtu = 1400;
        assert_eq!(overlay::ensure(&netdev, &wish)?, first, "an MTU is changed in place");
        wish.port = 8474;
        let index = overlay::ensure(&netdev, &wish)?;
        assert_ne!(index, first, "another port is another device");
        let foreign = overlay::Wish { name: "theirs".into(), ..wish.clone() };
        assert!(overlay::ensure(&netdev, &foreign).unwrap_err().to_string().contains("theirs"));

        let wanted = |nets: &[&str]| -> BTreeSet<routes::Route> {
            let route = |net: &&str| routes::Route {
                destination: net.parse().unwrap(),
                ifindex: index,
                source: None,
            };
            nets.iter().map(route).collect()
        };
        let neighbour = |address: &str| routes::Neighbour {
            ifindex: index,
            address: address.parse().unwrap(),
            mac: podwire_core::abi::OVERLAY_MAC,
        };
        let both = BTreeSet::from([neighbour("10.9.0.1"), neighbour("fd00:9::1")]);
        routes::apply(&netdev, &wanted(&["10.9.0.0/24", "10.8.0.0/24", "fd00:9::/64"]), &both)?;
        routes::apply(&netdev, &wanted(&["10.9.0.0/24", "fd00:9::/64"]), &both)?;
        Ok(())
    })
    .unwrap();
    let link = node.ip(&["-d", "link", "show", "pw-overlay"]).unwrap();
    for word in ["external", "dstport 8474", "mtu 1400", "NOARP", "02:70:77:00:00:01", "addrgenmode none"] {
        assert!(link.contains(word), "{word}: {link}");
    }
    let all = [node.ip(&["route"]).unwrap(), node.ip(&["-6", "route"]).unwrap()].concat();
    assert!(
        all.contains("10.9.0.0/24") && all.contains("fd00:9::/64") && !all.contains("10.8.0.0/24"),
        "{all}"
    );
    let neighbours = node.ip(&["neigh", "show", "nud", "permanent"]).unwrap();
    assert!(neighbours.contains("10.9.0.1") && neighbours.contains("fd00:9::1"), "{neighbours}");
    node.ip(&["route", "add", "10.7.0.0/24", "dev", "pw-overlay"]).unwrap();
    node.enter(|| {
        let netdev = Netdev::open()?;
        Ok(routes::apply(&netdev, &BTreeSet::new(), &BTreeSet::new())?)
    })
    .unwrap();
    let left = node.ip(&["route"]).unwrap();
    assert!(left.contains("10.7.0.0/24") && !left.contains("10.9.0.0/24"), "{left}");
    assert!(!node.ip(&["neigh", "show", "nud", "permanent"]).unwrap().contains("10.9.0.1"));
    node.enter(|| Ok(overlay::remove(&Netdev::open()?)?)).unwrap();
    let left = node.ip(&["link"]).unwrap();
    assert!(!left.contains("pw-overlay") && left.contains("theirs"), "{left}");
}

#[test]
fn root_addresses_are_announced_and_only_own_ones_go() {
    let (node, peer) = (NetNs::new("host").unwrap(), NetNs::new("peer").unwrap());
    node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", peer.name()]).unwrap();
    peer.ip(&["link", "set", "up1", "up"]).unwrap();
    node.ip(&["link", "set", "up0", "up"]).unwrap();
    node.ip(&["addr", "add", "192.0.2.8/32", "dev", "up0"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let capture = Capture::start(&peer, "up1", folder.path(), "arp or icmp6", 0).unwrap();
    node.enter(|| {
        let netdev = Netdev::open()?;
        let index = netdev.links()?["up0"].index;
        let wish = ["192.0.2.7", "192.0.2.8", "2001:db8::7"].map(|text| (index, text.parse().unwrap()));
        let mut addresses = address::Addresses::default();
        addresses.apply(&netdev, &wish.into())?;
        addresses.apply(&netdev, &wish.into())?;
        std::thread::sleep(Duration::from_millis(3500));
        Ok(())
    })
    .unwrap();
    let there = node.ip(&["addr", "show", "up0"]).unwrap();
    assert!(there.contains("192.0.2.7/32") && there.contains("2001:db8::7/128"), "{there}");
    let file = capture.stop();
    let garp = "arp.isgratuitous == 1 && arp.opcode == 1 && arp.src.proto_ipv4 == 192.0.2.7";
    assert_eq!(Capture::count(&file, 0, garp).unwrap(), 3);
    let na = "icmpv6.type == 136 && icmpv6.nd.na.flag.o == 1 && ipv6.hlim == 255 && ipv6.dst == ff02::1 \
              && icmpv6.nd.na.target_address == 2001:db8::7 && icmpv6.checksum.status == 1 && icmpv6.opt.linkaddr";
    assert_eq!(Capture::count(&file, 0, na).unwrap(), 3);
    node.enter(|| Ok(address::Addresses::default().apply(&Netdev::open()?, &BTreeSet::new())?)).unwrap();
    let left = node.ip(&["addr", "show", "up0"]).unwrap();
    assert!(
        left.contains("192.0.2.8") && !left.contains("192.0.2.7") && !left.contains("2001:db8::7"),
        "{left}"
    );
}

/// The node that has an address next is the only one that its neighbours hear of.
#[test]
fn root_addresses_that_are_given_up_are_announced_no_more() {
    let (node, peer) = (NetNs::new("host").unwrap(), NetNs::new("peer").unwrap());
    node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", peer.name()]).unwrap();
    peer.ip(&["link", "set", "up1", "up"]).unwrap();
    node.ip(&["link", "set", "up0", "up"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let capture = Capture::start(&peer, "up1", folder.path(), "arp or icmp6", 0).unwrap();
    let held = node
        .enter(|| {
            let netdev = Netdev::open()?;
            let index = netdev.links()?["up0"].index;
            let place = |text: &str| (index, text.parse().unwrap());
            let kept = place("192.0.2.9");
            let mut addresses = address::Addresses::default();
            let since = Instant::now();
            addresses.apply(&netdev, &BTreeSet::from([place("192.0.2.7"), place("2001:db8::7"), kept]))?;
            addresses.apply(&netdev, &BTreeSet::from([kept]))?;
            let held = since.elapsed();
            std::thread::sleep(Duration::from_millis(3700));
            Ok(held)
        })
        .unwrap();
    let file = capture.stop();
    let count = |filter: &str| Capture::count(&file, 0, filter).unwrap();
    // One at once; on a machine that was busy elsewhere for a second another one.
    let most = 1 + usize::from(held > Duration::from_millis(900));
    assert!((1..=most).contains(&count("arp.src.proto_ipv4 == 192.0.2.7")), "{held:?}");
    let na = "icmpv6.type == 136 && icmpv6.nd.na.target_address == 2001:db8::7";
    assert!((1..=most).contains(&count(na)), "{held:?}");
    assert_eq!(count("arp.src.proto_ipv4 == 192.0.2.9"), 3);
}

/// One that the kernel refuses, for the device has no IPv6, keeps none of the others from anything.
#[test]
fn root_an_address_is_announced_beside_one_that_is_refused() {
    let (node, peer) = (NetNs::new("host").unwrap(), NetNs::new("peer").unwrap());
    node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", peer.name()]).unwrap();
    peer.ip(&["link", "set", "up1", "up"]).unwrap();
    node.ip(&["link", "set", "up0", "up"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let capture = Capture::start(&peer, "up1", folder.path(), "arp", 0).unwrap();
    node.ip(&["link", "add", "other0", "type", "veth", "peer", "name", "other1"]).unwrap();
    let refused = node
        .enter(|| {
            std::fs::write("/proc/sys/net/ipv6/conf/up0/disable_ipv6", "1")?;
            let netdev = Netdev::open()?;
            let links = netdev.links()?;
            let all = [("up0", "192.0.2.7"), ("up0", "2001:db8::7"), ("other0", "192.0.2.8")];
            let wish = all.map(|(device, address)| (links[device].index, address.parse().unwrap()));
            Ok(address::Addresses::default().apply(&netdev, &wish.into()).unwrap_err().to_string())
        })
        .unwrap();
    assert!(refused.starts_with("adding address 2001:db8::7"), "{refused}");
    let there = node.ip(&["addr"]).unwrap();
    assert!(there.contains("192.0.2.7/32") && there.contains("192.0.2.8/32"), "{there}");
    let file = capture.stop();
    assert_eq!(Capture::count(&file, 0, "arp.src.proto_ipv4 == 192.0.2.7").unwrap(), 1);
}

#[test]
fn root_mtu_is_lowered_on_both_ends_and_never_raised() {
    let (node, pod) = (NetNs::new("host").unwrap(), NetNs::new("pod").unwrap());
    node.ip(&["link", "add", "pod0", "type", "veth", "peer", "name", "eth0", "netns", pod.name()]).unwrap();
    for wish in [1400, 1450] {
        node.enter(move || Ok(mtu::lower(&Netdev::open()?, "pod0", wish)?)).unwrap();
        assert!(node.ip(&["link", "show", "pod0"]).unwrap().contains("mtu 1400"));
        assert!(pod.ip(&["link", "show", "eth0"]).unwrap().contains("mtu 1400"));
    }
}

/// What somebody else made for the same destination or address stays, and keeps nothing else from being made.
#[test]
fn root_ways_of_others_stay() {
    let node = NetNs::new("host").unwrap();
    node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "up1"]).unwrap();
    node.ip(&["link", "set", "up0", "up"]).unwrap();
    node.ip(&["route", "add", "10.6.0.0/24", "dev", "lo"]).unwrap();
    let theirs =
        ["neigh", "add", "10.9.0.1", "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "up0"];
    node.ip(&theirs).unwrap();
    let index = node.enter(|| Ok(nix::net::if_::if_nametoindex("up0")?)).unwrap();
    let route = |net: &str| routes::Route { destination: net.parse().unwrap(), ifindex: index, source: None };
    let neighbour = |address: &str| routes::Neighbour {
        ifindex: index,
        address: address.parse().unwrap(),
        mac: [2, 0, 0, 0, 0, 1],
    };
    let ways = BTreeSet::from([route("10.6.0.0/24"), route("10.7.0.0/24")]);
    let neighbours = BTreeSet::from([neighbour("10.9.0.1"), neighbour("10.9.0.2")]);
    let error = node
        .enter(move || {
            Ok(routes::apply(&Netdev::open()?, &ways, &neighbours).err().map(|error| error.to_string()))
        })
        .unwrap();
    assert!(error.is_some_and(|error| error.contains("10.9.0.1")), "the one that is in the way is named");
    let shown = node.ip(&["neigh", "show", "nud", "permanent"]).unwrap();
    assert!(shown.contains("02:00:00:00:00:99") && shown.contains("10.9.0.2"), "{shown}");
    let shown = node.ip(&["route"]).unwrap();
    assert!(shown.contains("10.6.0.0/24 dev lo") && shown.contains("10.7.0.0/24 dev up0"), "{shown}");
    node.enter(|| Ok(routes::apply(&Netdev::open()?, &BTreeSet::new(), &BTreeSet::new())?)).unwrap();
    let left =
        [node.ip(&["neigh", "show", "nud", "permanent"]).unwrap(), node.ip(&["route"]).unwrap()].concat();
    assert!(left.contains("02:00:00:00:00:99") && left.contains("10.6.0.0/24 dev lo"), "{left}");
    assert!(!left.contains("10.9.0.2") && !left.contains("10.7.0.0/24"), "{left}");
}
