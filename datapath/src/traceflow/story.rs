//! What became of the packets of a trace, as one node saw it. In: observations in the order of their ring. Out: a
//! story for each packet, and how it ended.

use podwire_core::abi::{Action, Component, Reason};

use crate::observe::Observation;

/// How a packet's story ends on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At a pod.
    Delivered,
    /// Out of the cluster.
    Out,
    /// On its way to another node, which goes on with the story.
    HandedOn,
    /// In the node's own stack, for the node itself or to be cut into fragments.
    Host,
    /// For a reason; `None` for one that this release does not know.
    Dropped(Option<Reason>),
}

/// A packet of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketStory {
    /// As [`Observation::identity`].
    pub identity: u32,
    /// Whether it is an answer.
    pub reply: bool,
    /// In the order of its way.
    pub observations: Vec<Observation>,
}

impl PacketStory {
    /// How it ends, if it is over.
    pub fn end(&self) -> Option<End> {
        self.observations.iter().rev().find_map(end_of)
    }
}

/// How a story ends with this observation, if it does.
pub fn end_of(seen: &Observation) -> Option<End> {
    match (seen.component, seen.action) {
        (_, Action::Dropped) => Some(End::Dropped(seen.reason)),
        (_, Action::Delivered) => Some(End::Delivered),
        (_, Action::ForwardedOutOfNetwork) => Some(End::Out),
        (Component::Forwarding, Action::Forwarded) if seen.last => match seen.tunnel_destination {
            Some(_) => Some(End::HandedOn),
            None => Some(End::Host),
        },
        _ => None,
    }
}

/// When a trace has seen enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Packets whose story is over.
    pub packets: u32,
    /// And as many answers.
    pub replies: bool,
    /// Only drops count.
    pub dropped_only: bool,
}

/// The stories of a trace.
#[derive(Clone, Debug, Default)]
pub struct Story {
    packets: Vec<PacketStory>,
}

impl Story {
    /// Goes on with what a stage did.
    pub fn add(&mut self, seen: Observation) {
        let is_it =
            |packet: &&mut PacketStory| packet.identity == seen.identity && packet.reply == seen.reply;
        let packet = match self.packets.iter_mut().find(is_it) {
            Some(packet) => packet,
            None => {
                let new =
                    PacketStory { identity: seen.identity, reply: seen.reply, observations: Vec::new() };
                self.packets.push(new);
                match self.packets.last_mut() {
                    Some(packet) => packet,
                    None => return,
                }
            }
        };
        // The ring has them in the order in which they were made, whatever the clocks of two CPUs say.
        packet.observations.push(seen);
    }

    /// By the time of their first observation.
    pub fn packets(&self) -> Vec<&PacketStory> {
        let mut packets: Vec<&PacketStory> = self.packets.iter().collect();
        packets
            .sort_by_key(|packet| (packet.reply, packet.observations.first().map_or(0, |seen| seen.time_ns)));
        packets
    }

    /// Whether the goal is reached.
    pub fn is_over(&self, goal: &Goal) -> bool {
        let ended = |reply: bool| {
            let counts = |packet: &&PacketStory| match packet.end() {
                Some(End::Dropped(_)) => true,
                Some(_) => !goal.dropped_only,
                None => false,
            };
            let of = self.packets.iter().filter(|packet| packet.reply == reply);
            of.filter(counts).count() as u32
        };
        if ended(false) < goal.packets {
            return false;
        }
        // What was dropped has no answer.
        let dropped = |packet: &&PacketStory| matches!(packet.end(), Some(End::Dropped(_)));
        let unanswered = self.packets.iter().filter(|packet| !packet.reply).filter(dropped).count() as u32;
        !goal.replies || ended(true) + unanswered >= goal.packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(identity: u32, time_ns: u64, component: Component, action: Action) -> Observation {
        Observation {
            time_ns,
            trace: Some(1),
            component,
            action,
            reason: None,
            kernel_reason: None,
            endpoint: None,
            ifindex: 1,
            policy: None,
            egress_node: None,
            egress_ip: None,
            tunnel_destination: None,
            source: None,
            destination: None,
            protocol: 17,
            source_port: 1,
            destination_port: 2,
            destination_mac: [0; 6],
            ttl: 64,
            tag: 3,
            length: 60,
            cpu: 0,
            sequence: 0,
            lost_before: 0,
            identity,
            reply: false,
            last: false,
        }
    }

    const GOAL: Goal = Goal { packets: 2, replies: false, dropped_only: false };

    #[test]
    fn packets_are_told_apart_and_put_in_order() {
        let mut story = Story::default();
        story.add(seen(7, 20, Component::SpoofGuard, Action::Forwarded));
        story.add(seen(8, 30, Component::SpoofGuard, Action::Forwarded));
        // By a clock that is behind.
        story.add(seen(7, 10, Component::Forwarding, Action::Delivered));
        assert!(!story.is_over(&GOAL));
        story.add(seen(8, 40, Component::Forwarding, Action::Dropped));
        assert!(story.is_over(&GOAL));
        let packets = story.packets();
        assert_eq!(packets.iter().map(|packet| packet.identity).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(packets[0].end(), Some(End::Delivered));
        assert_eq!(packets[1].end(), Some(End::Dropped(None)));
        assert_eq!(packets[0].observations[0].time_ns, 20);
    }

    #[test]
    fn what_goes_through_the_host_is_not_over_and_what_goes_to_a_node_is() {
        let mut story = Story::default();
        let goal = Goal { packets: 1, ..GOAL };
        story.add(seen(7, 10, Component::Forwarding, Action::Forwarded));
        assert!(!story.is_over(&goal));
        let to_node = seen(7, 11, Component::Forwarding, Action::Forwarded);
        story.add(Observation { last: true, tunnel_destination: Some([192, 0, 2, 1].into()), ..to_node });
        assert!(story.is_over(&goal));
        assert_eq!(story.packets()[0].end(), Some(End::HandedOn));
    }

    #[test]
    fn answers_are_waited_for_unless_there_can_be_none() {
        let goal = Goal { packets: 1, replies: true, dropped_only: false };
        let mut story = Story::default();
        story.add(seen(7, 10, Component::Forwarding, Action::Delivered));
        assert!(!story.is_over(&goal));
        let answer = Observation { reply: true, ..seen(9, 20, Component::Forwarding, Action::Delivered) };
        story.add(answer);
        assert!(story.is_over(&goal));
        let mut story = Story::default();
        story.add(seen(7, 10, Component::SpoofGuard, Action::Dropped));
        assert!(story.is_over(&goal));
    }

    #[test]
    fn only_drops_count_where_only_they_are_wanted() {
        let goal = Goal { packets: 1, dropped_only: true, ..GOAL };
        let mut story = Story::default();
        story.add(seen(7, 10, Component::Forwarding, Action::Delivered));
        assert!(!story.is_over(&goal));
        story.add(seen(8, 10, Component::Egress, Action::Dropped));
        assert!(story.is_over(&goal));
    }
}
