//! Runs a capture. In: sockets and what is wanted. Out: packets in a file or as lines, a summary, and the exit code.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tokio::sync::mpsc;

use super::Wanted;
use super::file::Output;
use super::limit::Limit;
use super::line::line;
use super::order::{Order, Packet};
use super::place;
use super::progress::Progress;
use super::summary::{Account, Interface, summary};
use crate::capture::{Decoder, Message, Request};
use crate::client::{Client, interrupted};
use crate::failure::Failure;

/// How long packets are held back for earlier ones: of one node's CPUs, and of several nodes.
const ONE_NODE: Duration = Duration::from_millis(50);
const MANY_NODES: Duration = Duration::from_millis(300);
/// Between two looks at packets that are held back.
const TICK: Duration = Duration::from_millis(20);
/// Time that agents have for their accounts once they were asked to end.
const GRACE: Duration = Duration::from_secs(5);
/// Messages that may wait between a connection and the file: a slow disk slows the agent, which counts what it loses.
const QUEUE: usize = 256;

/// Captures until a limit, an interrupt, or the end of all agents' streams.
pub fn capture(sockets: Vec<PathBuf>, wanted: &Wanted) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let agents: Vec<Client> = sockets.into_iter().map(Client::new).collect();
        let mut known = Vec::new();
        for agent in &agents {
            known.push(place::known(&agent.ask("/v1/endpoints").await?));
        }
        let requests = place::requests(wanted, &known)?;
        let output = wanted.write.as_ref().map(|path| Output::create(path)).transpose()?;
        let mut run = Run::begin(&agents, requests, wanted, output).await?;
        let outcome = run.go().await;
        run.finish(outcome)
    })
}

/// An agent that captures.
struct Part<'a> {
    agent: &'a Client,
    id: u64,
    /// Its first interface in the file.
    first: u32,
    /// Whether it goes on.
    open: bool,
}

/// What comes of an agent: a message, or the end of its stream with what went wrong.
type News = (usize, Result<Message, Option<Failure>>);

struct Run<'a> {
    parts: Vec<Part<'a>>,
    news: mpsc::Receiver<News>,
    interfaces: Vec<Interface>,
    order: Order,
    limit: Limit,
    output: Option<Output>,
    begun: SystemTime,
    /// What went wrong with an agent.
    failure: Option<Failure>,
    /// Whether agents have been asked to end.
    ending: bool,
    progress: Progress,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Interrupted,
}

impl<'a> Run<'a> {
    /// Asks all agents, and returns when all capture.
    async fn begin(
        agents: &'a [Client],
        requests: Vec<(usize, Request)>,
        wanted: &Wanted,
        output: Option<Output>,
    ) -> Result<Self, Failure> {
        let (sender, news) = mpsc::channel(QUEUE);
        let (mut parts, mut interfaces): (Vec<Part>, Vec<Interface>) = (Vec::new(), Vec::new());
        let window = if requests.len() > 1 { MANY_NODES } else { ONE_NODE };
        let begun = SystemTime::now();
        let mut waiting = Vec::new();
        for (agent, request) in requests {
            let Some(agent) = agents.get(agent) else { continue };
            let body = serde_json::to_string(&request)
                .map_err(|error| Failure::Run(format!("writing a request: {error}")))?;
            let mut pieces = agent.open("/v1/captures", body).await?;
            let mut decoder = Decoder::default();
            let said = loop {
                if let Some(message) = decoder.next().map_err(unreadable)? {
                    break message;
                }
                let piece = pieces.next().await?;
                decoder.push(&piece.ok_or_else(|| Failure::Run("the agent has not begun".into()))?);
            };
            let Message::Said(said) = said else {
                return Err(unreadable("a frame before the beginning".into()));
            };
            let node = said["node"].as_str().unwrap_or_default();
            let part = Part {
                agent,
                id: said["id"].as_u64().unwrap_or_default(),
                first: interfaces.len() as u32,
                open: true,
            };
            waiting.extend(waits(&said));
            interfaces.extend(request.pods.iter().map(|pod| Interface {
                pod: pod.name.clone(),
                node: node.to_owned(),
                ..Interface::default()
            }));
            let (number, sender) = (parts.len(), sender.clone());
            parts.push(part);
            tokio::spawn(async move {
                let end = read(number, &mut pieces, decoder, &sender).await;
                let _ = sender.send((number, Err(end.err()))).await;
            });
        }
        let mut run = Self {
            parts,
            news,
            interfaces,
            order: Order::new(window),
            limit: Limit::new(wanted.count, wanted.bytes),
            progress: Progress::new(output.is_some()),
            output,
            begun,
            failure: None,
            ending: false,
        };
        if let Some(output) = &mut run.output {
            output.describe(&run.interfaces, wanted.snaplen, &wanted.flow.to_string())?;
        }
        run.say_begun(&waiting);
        Ok(run)
    }

    fn say_begun(&mut self, waiting: &[String]) {
        let places = self.interfaces.iter().map(|one| format!("{} ({})", one.pod, one.node));
        let places: Vec<String> = places.collect();
        self.progress.say(&format!("capturing at {}; Ctrl-C ends it", places.join(", ")));
        waiting.iter().for_each(|line| self.progress.say(line));
    }

    /// Until everything is over. An error: the output cannot be written.
    async fn go(&mut self) -> Result<End, Failure> {
        let mut end = End::Whole;
        let mut deadline = None;
        let mut tick = tokio::time::interval(TICK);
        let mut interrupt = Box::pin(interrupted());
        while self.parts.iter().any(|part| part.open) {
            tokio::select! {
                biased;
                pressed = &mut interrupt => {
                    pressed?;
                    if std::mem::replace(&mut end, End::Interrupted) == End::Interrupted {
                        // Twice: now.
                        break;
                    }
                    interrupt = Box::pin(interrupted());
                    self.ask_to_end(&mut deadline).await;
                }
                _ = tick.tick() => {
                    self.write_due()?;
                    if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                        break;
                    }
                }
                news = self.news.recv() => match news {
                    Some((part, news)) => self.take(part, news),
                    None => break,
                },
            }
            if (self.limit.is_reached() || self.failure.is_some()) && !self.ending {
                self.ask_to_end(&mut deadline).await;
            }
        }
        while let Some(packet) = self.order.take_any() {
            self.write(&packet)?;
        }
        Ok(end)
    }

    fn take(&mut self, number: usize, news: Result<Message, Option<Failure>>) {
        let Some(part) = self.parts.get_mut(number) else { return };
        match news {
            Ok(Message::Frame(head, bytes)) => {
                let packet = Packet { interface: part.first + head.pod, head, bytes };
                if !self.limit.is_reached() {
                    self.order.put(packet, Instant::now());
                }
            }
            Ok(Message::Said(said)) if said["kind"] == "End" => {
                for (pod, account) in
                    (part.first as usize..).zip(said["pods"].as_array().into_iter().flatten())
                {
                    if let Some(interface) = self.interfaces.get_mut(pod) {
                        interface.account = Some(Account::read(account));
                    }
                }
                if let Some(why) = said["failure"].as_str() {
                    self.failure.get_or_insert(Failure::Unreachable(format!("the capture was ended: {why}")));
                }
                part.open = false;
            }
            Ok(Message::Said(said)) => {
                let news = waits(&said);
                if news.is_empty() {
                    self.progress.say("all pods are captured at");
                }
                news.iter().for_each(|line| self.progress.say(line));
            }
            Err(why) if part.open => {
                part.open = false;
                let node = self.interfaces.get(part.first as usize).map_or("", |one| one.node.as_str());
                let why = why.map_or_else(|| "it hung up".to_owned(), |failure| failure.line());
                let line =
                    format!("the agent of {node} went away: {why}; what was captured until then is kept");
                self.failure.get_or_insert(Failure::Unreachable(line));
            }
            Err(_) => {}
        }
    }

    /// Asks all agents that go on; their streams tell the rest.
    async fn ask_to_end(&mut self, deadline: &mut Option<Instant>) {
        self.ending = true;
        deadline.get_or_insert_with(|| Instant::now() + GRACE);
        for part in self.parts.iter().filter(|part| part.open) {
            // One that does not answer is waited for no longer than the deadline.
            let path = format!("/v1/captures/{}/end", part.id);
            let asked = part.agent.open(&path, String::new());
            let _ = tokio::time::timeout(Duration::from_secs(1), asked).await;
        }
    }

    fn write_due(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        while let Some(packet) = self.order.take(now) {
            self.write(&packet)?;
        }
        if let Some(output) = &mut self.output {
            output.flush()?;
        }
        self.progress.show(&self.interfaces);
        Ok(())
    }

    fn write(&mut self, packet: &Packet) -> Result<(), Failure> {
        let len = packet.bytes.len() as u64;
        let Some(interface) = self.interfaces.get_mut(packet.interface as usize) else {
            return Err(unreadable("a frame of a pod that was not asked for".into()));
        };
        if !self.limit.take(len) {
            return Ok(());
        }
        interface.packets += 1;
        interface.bytes += len;
        match &mut self.output {
            Some(output) => output.packet(packet),
            None => Ok(writeln!(anstream::stdout(), "{}", line(packet, &interface.pod))?),
        }
    }

    /// The end of the file, the summary, the exit code.
    fn finish(mut self, outcome: Result<End, Failure>) -> Result<(), Failure> {
        let end = outcome?;
        if let Some(output) = &mut self.output {
            output.end(&self.interfaces, self.begun)?;
        }
        self.progress.say(&summary(&self.interfaces));
        match (self.failure, end) {
            (Some(failure), _) => Err(failure),
            (None, End::Interrupted) => Err(Failure::Shown(130)),
            (None, End::Whole) => Ok(()),
        }
    }
}

/// Hands on an agent's messages until its stream ends.
async fn read(
    number: usize,
    pieces: &mut crate::client::Pieces,
    mut decoder: Decoder,
    sender: &mpsc::Sender<News>,
) -> Result<(), Failure> {
    loop {
        while let Some(message) = decoder.next().map_err(unreadable)? {
            if sender.send((number, Ok(message))).await.is_err() {
                return Ok(());
            }
        }
        match pieces.next().await? {
            Some(piece) => decoder.push(&piece),
            None => return Ok(()),
        }
    }
}

fn unreadable(what: String) -> Failure {
    Failure::Run(format!("the agent's stream cannot be read: {what}"))
}

/// Pods that are waited for, a line each.
fn waits(said: &Value) -> Vec<String> {
    let pods = said["pods"].as_array().into_iter().flatten();
    let waits = pods.filter_map(|pod| {
        let (name, why) = (pod["name"].as_str()?, pod["waiting"].as_str()?);
        Some(format!("waiting for {name}: {why}"))
    });
    waits.collect()
}
