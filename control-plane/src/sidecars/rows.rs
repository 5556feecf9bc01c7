//! The newest stream of each sidecar at this control plane, and what we know of its row in the database.

use super::streams::{Phase, StreamStatus};
use crate::{
    domain::sidecar::{SidecarInstance, SidecarProgress},
    store::sidecars::RecordedSidecar,
};
use countersign_identity::ServiceId;
use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
};

/// The sidecars that have a stream to this control plane, or had one and may still decide.
#[derive(Default)]
pub(super) struct Streams(HashMap<ServiceId, BTreeMap<SidecarInstance, Process>>);

/// A process of a sidecar, with its newest stream.
struct Process {
    stream: Arc<StreamStatus>,
    row: Row,
}

/// What we know of the row of a process in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Row {
    /// This control plane has written no row.
    Missing,
    /// We do not know: a transaction is writing the row or has failed, or another control plane may have written it.
    Unknown,
    /// The row is open.
    Open {
        /// The name of this control plane in the row.
        control_plane: Arc<str>,
        /// The number of the stream in the row.
        stream: i64,
        /// The progress in the row.
        progress: SidecarProgress,
    },
    /// The row has ended. The stream in memory tells more exactly than the row how long the sidecar may decide.
    Ended,
}

/// A stream whose row must be written.
pub(super) struct Unwritten {
    pub(super) stream: Arc<StreamStatus>,
    pub(super) progress: SidecarProgress,
    /// Whether the sidecar still uses the stream.
    pub(super) phase: Phase,
    /// What we knew of the row before this write, for [`Streams::not_written`].
    row: Row,
}

/// Which streams to write besides the new ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Selection {
    /// Streams that have ended.
    pub(super) with_ends: bool,
    /// Open streams whose progress has changed.
    pub(super) with_progress: bool,
}

impl Unwritten {
    /// Whether the stream has ended and its sidecar refuses all requests: the sidecar has said so, or was never confirmed.
    pub(super) fn decides_no_more(&self) -> bool {
        match self.phase {
            Phase::InUse => false,
            Phase::Ended => self.stream.latest_confirmation().is_none(),
            Phase::Left => true,
        }
    }
}

impl Streams {
    /// Whether the database has the ends of all streams.
    pub(super) fn have_ended(&self) -> bool {
        self.0.values().flat_map(BTreeMap::values).all(|process| process.row == Row::Ended)
    }

    /// The newest streams of the sidecars of a service, open or ended.
    pub(super) fn of_service(&self, service: ServiceId) -> impl Iterator<Item = &Arc<StreamStatus>> {
        self.0.get(&service).into_iter().flat_map(BTreeMap::values).map(|process| &process.stream)
    }

    /// The stream that a row describes, if the row is of this control plane under its current `name`.
    pub(super) fn of_row(&self, row: &RecordedSidecar, name: &str) -> Option<Arc<StreamStatus>> {
        let stream = &self.0.get(&row.identity.service)?.get(&row.identity.instance)?.stream;
        // An open row also stands for a later stream of the same process that we have not written yet.
        let is_of_row = row.control_plane == name && (row.ended_at.is_none() || row.stream == stream.number);
        is_of_row.then(|| Arc::clone(stream))
    }

    /// Adds a stream, in place of an earlier one of its process. Does nothing if the process already has a later stream: on the
    /// earlier one, we do not confirm the sidecar.
    pub(super) fn insert(&mut self, stream: Arc<StreamStatus>) {
        let of_service = self.0.entry(stream.identity.service).or_default();
        match of_service.entry(stream.identity.instance) {
            Entry::Vacant(entry) => {
                entry.insert(Process { stream, row: Row::Missing });
            }
            Entry::Occupied(mut entry) => {
                let process = entry.get_mut();
                if process.stream.number > stream.number {
                    return;
                }
                let earlier = std::mem::replace(&mut process.stream, stream).number;
                // Treat an ended row as missing, so that the new stream is written before its sidecar is confirmed.
                if process.row == Row::Ended {
                    process.row = Row::Missing;
                } else if !process.continues(earlier) && process.row != Row::Missing {
                    process.row = Row::Unknown;
                }
            }
        }
    }

    /// Whether we may confirm the sidecar of a stream: its row is open under our `name`.
    pub(super) fn may_be_confirmed(&self, stream: &Arc<StreamStatus>, name: &Arc<str>) -> bool {
        let process = self.0.get(&stream.identity.service).and_then(|it| it.get(&stream.identity.instance));
        process.is_some_and(|Process { stream: newest, row }| {
            Arc::ptr_eq(newest, stream) && matches!(row, Row::Open { control_plane, .. } if control_plane == name)
        })
    }

    /// Takes the streams whose rows we must write under our `name`. Removes ended streams that have no row, or whose sidecar
    /// refuses all requests by now.
    pub(super) fn take_unwritten(&mut self, name: &Arc<str>, selection: Selection) -> Vec<Unwritten> {
        let mut unwritten = Vec::new();
        for of_service in self.0.values_mut() {
            of_service.retain(|_, process| {
                let (phase, progress) = (process.stream.phase(), process.stream.progress());
                let has_ended = phase != Phase::InUse;
                match process.row {
                    Row::Missing if has_ended => return false,
                    Row::Ended => return !process.stream.has_expired(),
                    Row::Missing | Row::Unknown | Row::Open { .. } => {}
                }
                let must_write =
                    if has_ended { selection.with_ends } else { process.must_be_written(name, progress, selection) };
                if must_write {
                    let row = process.row.clone();
                    // Writing only progress cannot end an open row, so we still know that the row is open.
                    if has_ended || row == Row::Missing {
                        process.row = Row::Unknown;
                    }
                    unwritten.push(Unwritten { stream: Arc::clone(&process.stream), progress, phase, row });
                }
                true
            });
        }
        self.0.retain(|_, of_service| !of_service.is_empty());
        unwritten
    }

    /// Up to `limit` streams whose sidecar has said that its previous process has ended, if that process may still have a row.
    pub(super) fn replacements(&self, limit: usize) -> Vec<Arc<StreamStatus>> {
        let streams = self.0.values().flat_map(BTreeMap::values).map(|process| &process.stream);
        streams.filter(|stream| stream.process_to_forget().is_some()).take(limit).map(Arc::clone).collect()
    }

    /// Call after a commit has written a stream under `name`. `is_newest`: false if the database has a later stream of the process.
    pub(super) fn written(&mut self, unwritten: &Unwritten, name: &Arc<str>, is_newest: bool) {
        let Unwritten { stream, progress, phase, row: _ } = unwritten;
        let Some(of_service) = self.0.get_mut(&stream.identity.service) else { return };
        let Some(process) = of_service.get_mut(&stream.identity.instance) else { return };
        if is_newest && *phase == Phase::InUse {
            let (control_plane, number) = (Arc::clone(name), stream.number);
            let open = Row::Open { control_plane, stream: number, progress: *progress };
            process.row = if process.continues(number) { open } else { Row::Unknown };
            process.stream.recorded.notify_one();
        } else if !Arc::ptr_eq(&process.stream, stream) {
            // The process has opened another stream here meanwhile.
            process.row = Row::Missing;
        } else if is_newest && !unwritten.decides_no_more() {
            process.row = Row::Ended;
        } else {
            // The row was deleted with the end of the stream, or it belongs to a later stream at another control plane.
            of_service.remove(&stream.identity.instance);
        }
    }

    /// Call when a stream was certainly not written: what we knew of its row before is still true.
    pub(super) fn not_written(&mut self, Unwritten { stream, row, .. }: Unwritten) {
        let of_service = self.0.get_mut(&stream.identity.service);
        let process = of_service.and_then(|of_service| of_service.get_mut(&stream.identity.instance));
        if let Some(process) = process.filter(|process| process.continues(stream.number)) {
            process.row = row;
        }
    }
}

impl Process {
    /// Whether the newest stream has this number, or the next one. If so, the process had no stream to another control plane in
    /// between, so no other control plane has written its row.
    fn continues(&self, number: i64) -> bool {
        self.stream.number <= number.saturating_add(1)
    }

    /// Whether the row of an open stream must be written.
    fn must_be_written(&self, name: &Arc<str>, progress: SidecarProgress, selection: Selection) -> bool {
        match &self.row {
            Row::Missing | Row::Unknown => true,
            Row::Ended => false,
            Row::Open { control_plane, stream, progress: written } => {
                control_plane != name
                    || *stream != self.stream.number
                    || selection.with_progress && !written.is_equivalent(progress)
            }
        }
    }
}
