//! Captures over the socket. In: a request. Out: a stream of frames, as `crate::capture` describes it, until the client
//! goes, asks for the end, or the time is over.

use std::convert::Infallible;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{FutureExt, stream};
use podwire_datapath::Frame;
use serde_json::json;
use tokio::sync::oneshot;

use super::{answer, respond};
use crate::capture::{FrameHead, write_frame, write_said};
use crate::daemon::captures::{Begun, Cause, Filters, Wanted};
use crate::daemon::worker::{Message, Trouble, View};

/// Bytes that are sent at once, if so many wait.
const CHUNK: usize = 1 << 18;

type Worker = State<mpsc::Sender<Message>>;

pub fn routes(worker: mpsc::Sender<Message>) -> Router {
    Router::new()
        .route("/v1/captures", get(list).post(begin))
        .route("/v1/captures/{id}/end", post(end))
        .with_state(worker)
}

async fn list(State(worker): Worker) -> Response {
    answer(worker, |answer| Message::View { view: View::Captures, answer }).await
}

/// Ends a capture; its stream tells the rest.
async fn end(State(worker): Worker, Path(id): Path<u64>) -> Response {
    answer(worker, |answer| Message::EndCapture { id, answer: Some(answer) }).await
}

async fn begin(State(worker): Worker, text: String) -> Response {
    let read = serde_json::from_str(&text).map_err(|error| error.to_string());
    let wanted = match read.and_then(Wanted::read) {
        Ok(wanted) => wanted,
        Err(line) => return respond(Err(Trouble::Refused(vec![line]))),
    };
    let (filters, duration) = (wanted.filters.clone(), wanted.duration());
    let (answer, wait) = oneshot::channel();
    let ending = || respond(Err(Trouble::Failed("the agent is ending".into())));
    let to = worker.clone();
    if to.send(Message::BeginCapture { wanted: Box::new(wanted), worker, answer }).is_err() {
        return ending();
    }
    let begun = match wait.await {
        Ok(Ok(begun)) => begun,
        Ok(Err(trouble)) => return respond(Err(trouble)),
        Err(_) => return ending(),
    };
    let telling = Telling {
        filtered: vec![0; begun.readers.len()],
        begun,
        filters,
        last_ns: duration.map_or(u64::MAX, after),
        at: At::Begin,
    };
    let chunks = stream::unfold(telling, |mut telling| async move {
        let chunk = telling.next().await?;
        Some((Ok::<_, Infallible>(chunk), telling))
    });
    ([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(chunks)).into_response()
}

/// Nanoseconds since 1970 when the time is over.
fn after(duration: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from((now + duration).as_nanos()).unwrap_or(u64::MAX)
}

enum At {
    Begin,
    Frames,
    Over,
}

struct Telling {
    begun: Begun,
    filters: Filters,
    /// Frames that the classifier let through and nobody wants, by pod.
    filtered: Vec<u64>,
    /// Later packets are left out: taking the capture down takes its time.
    last_ns: u64,
    at: At,
}

enum Event {
    Frame(Option<Frame>),
    State,
}

impl Telling {
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(CHUNK);
        match self.at {
            At::Begin => {
                self.at = At::Frames;
                let states = self.begun.states.borrow_and_update().clone();
                let begun = &self.begun;
                let said =
                    json!({"kind": "Begun", "id": begun.id, "node": begun.node, "pods": states["pods"]});
                write_said(&mut out, &said);
                return Some(out);
            }
            At::Over => return None,
            At::Frames => {}
        }
        while out.is_empty() {
            match self.event().await {
                Event::Frame(Some(frame)) => self.write(&mut out, &frame),
                Event::Frame(None) => self.write_end(&mut out).await,
                Event::State => write_said(&mut out, &self.begun.states.borrow_and_update()),
            }
        }
        Some(out)
    }

    async fn event(&mut self) -> Event {
        // Frames last: a flood of them must not put news off.
        tokio::select! {
            biased;
            Ok(()) = self.begun.states.changed() => Event::State,
            frame = self.begun.frames.next() => Event::Frame(frame),
        }
    }

    /// The frame, and those that wait already.
    fn write(&mut self, out: &mut Vec<u8>, frame: &Frame) {
        self.write_one(out, frame);
        while out.len() < CHUNK
            && let Some(Some(frame)) = self.begun.frames.next().now_or_never()
        {
            self.write_one(out, &frame);
        }
    }

    fn write_one(&mut self, out: &mut Vec<u8>, frame: &Frame) {
        let Some(pod) = self.begun.readers.iter().position(|reader| *reader == frame.reader) else {
            return;
        };
        if frame.time_ns > self.last_ns || !self.filters.accept(&frame.bytes) {
            self.filtered[pod] += 1;
            return;
        }
        let head = FrameHead {
            pod: pod as u32,
            direction: frame.direction,
            time_ns: frame.time_ns,
            length: frame.length,
        };
        write_frame(out, &head, &frame.bytes);
    }

    async fn write_end(&mut self, out: &mut Vec<u8>) {
        self.at = At::Over;
        let lost = || json!({"kind": "End", "cause": Cause::AgentEnds.as_str(), "pods": []});
        let mut account = (&mut self.begun.account).await.unwrap_or_else(|_| lost());
        for (pod, filtered) in account["pods"].as_array_mut().into_iter().flatten().zip(&self.filtered) {
            pod["filtered"] = json!(filtered);
        }
        write_said(out, &account);
    }
}
