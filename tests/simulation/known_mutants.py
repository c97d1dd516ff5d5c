"""Faults that were put into dispatcher and tracker by hand, for `mutants.py` to see whether the simulation finds them.

A fault is one replacement of an exact text that stands once in its file, or several. Where the code moves on, the old
text is gone: then its equal in the new code is chosen, or the fault is dropped where it has none any more.
"""

from typing import Final, NamedTuple


class Edit(NamedTuple):
    """One replacement."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One fault."""

    name: str
    file: str
    old: str
    new: str
    why: str
    more: tuple[Edit, ...] = ()
    variant: str | None = None
    """That of the runs, where the seeds' own cannot meet it."""
    says: str = ""
    """A complaint about this fault matches it, where the edits bring more than one fault."""

    @property
    def edits(self) -> tuple[Edit, ...]:
        """All replacements."""
        return (Edit(self.file, self.old, self.new), *self.more)


DISPATCHER: Final = [
    Mutant(
        "chunks-apart",
        "dispatcher/core/shared.py",
        "        else:\n            self.begun[item[SLOT]] = consumer.index\n",
        "",
        "chunks of one message go to several consumers",
    ),
    Mutant(
        "damaged-is-acknowledged",
        "dispatcher/dispatcher.py",
        "        self._decide(lambda core: core.put_aside(damage.entries))\n",
        "        positions = [(ledger_id, at) for ledger_id, ids in damage.entries.items() for at in ids]\n"
        "        self.acknowledge(None, positions)\n",
        "what is put aside for damage is acknowledged, and so lost for a repair from a copy",
        says="damaged",
    ),
    Mutant(
        "damaged-keeps-permits",
        "dispatcher/outbox.py",
        "        self._on_refused(self.consumer, damaged)\n",
        "",
        "the permits of a damaged entry do not go back to its consumer",
    ),
    Mutant(
        "unreadable-holds-up-its-consumer",
        "dispatcher/outbox.py",
        "            if slot not in slots and position_of(item) not in unread:\n",
        "            if not self._unread and position_of(item) not in unread:\n",
        "a read that fails holds up what its consumer gets of other keys",
    ),
    Mutant(
        "subscription-count-not-lowered",
        "dispatcher/core/budget.py",
        "        self.unacked -= messages\n        if self.is_blocked",
        "        if self.is_blocked",
        "a count not lowered: what the subscription holds",
    ),
    Mutant(
        "unblocked-and-none-served",
        "dispatcher/core/multiple_consumers.py",
        "        if is_unblocked:\n            self.assignor.wake_all()\n",
        "",
        "a missing wake-up when the subscription's limit is no longer met",
    ),
    Mutant(
        "returning-without-timer",
        "dispatcher/core/multiple_consumers.py",
        "if self.assignor.to_serve or self.replay_queue.returning:",
        "if self.assignor.to_serve:",
        "a missing wake-up for the second portion of what a consumer gave back",
    ),
    Mutant(
        "new-head-not-offered-after-expiry",
        "dispatcher/core/multiple_consumers.py",
        "        self.assignor.offer_all(self.replay_queue.discard_through(through))",
        "        self.replay_queue.discard_through(through)",
        "the head behind an expired one is not offered",
    ),
    Mutant(
        "refund-forgotten",
        "dispatcher/core/consumers.py",
        "        self.permits += sum(item[COUNT] for item in items)\n",
        "        pass\n",
        "permits of what was not sent do not come back",
    ),
    Mutant(
        "refused-not-refunded",
        "dispatcher/dispatcher.py",
        "            core.refund(consumer, items)\n            # The permits",
        "            # The permits",
        "charged and not sent: an acknowledged entry in the outbox keeps its permit",
    ),
    Mutant(
        "held-and-acknowledged",
        "dispatcher/core/intake.py",
        "        return self._deliverable.among(self.held_due.take(entries_max, self._admitted_through()))",
        "        return self.held_due.take(entries_max, self._admitted_through())",
        "what is held is let in without asking what is acknowledged",
    ),
    Mutant(
        "due-and-acknowledged",
        "dispatcher/core/intake.py",
        "        headers = self._deliverable.among(headers)\n        is_next = not self.held_due",
        "        is_next = not self.held_due",
        "what the tracker gives is let in without asking what was acknowledged while its headers were read",
    ),
    Mutant(
        "late-behind-what-waits",
        "dispatcher/core/intake.py",
        "        is_wanted = len(self._budget.waiting) > 0 or self._budget.has_demand()\n",
        "        is_wanted = self._budget.has_demand()\n",
        "what was due when it was accepted comes after all that waits, while consumers can take nothing",
    ),
    Mutant(
        "hold-without-timer",
        "dispatcher/core/intake.py",
        " if hold_until_ms is not None and self._budget.now_ms < hold_until_ms < UNLIMITED else None",
        " if False else None",
        "a missing wake-up when due entries have waited long enough for the order of time",
    ),
    Mutant(
        "moved-slots-not-offered",
        "dispatcher/core/key_shared.py",
        "        self.offer_all(_moved(before, after, self.replay_queue.heaps))",
        "        pass",
        "what waits in slots that moved is not offered to the new owner",
    ),
    Mutant(
        "unblocking-without-timer",
        "dispatcher/core/multiple_consumers.py",
        "times_ms = [self.intake.next_wakeup_ms(), grant_ms, self.assignor.next_wakeup_ms()]",
        "times_ms = [self.intake.next_wakeup_ms(), grant_ms]",
        "a missing wake-up for slots that have drained",
    ),
    Mutant(
        "batch-charged-as-one",
        "dispatcher/core/key_shared.py",
        "            budgets[owner] -= item[COUNT]",
        "            budgets[owner] -= 1",
        "a batch is weighed as one message when permits are looked at",
    ),
    Mutant(
        "given-while-returning",
        "dispatcher/core/key_shared.py",
        " or owners[slot] != consumer.index or slot in returning:",
        " or owners[slot] != consumer.index:",
        "a slot is served while the rest of its entries are on their way back",
    ),
    Mutant(
        "drains-for-one",
        "dispatcher/core/fences/draining_hashes.py",
        '        self._columns["references"][row] -= count\n',
        '        self._columns["references"][row] -= 1\n',
        "off by some: a draining slot counts one reference less for several entries",
    ),
    Mutant(
        "drains-although-back",
        "dispatcher/core/fences/draining_hashes.py",
        "        if self.slots and is_own.any():",
        "        if False:",
        "a slot that moved back to its holder drains for ever",
    ),
    Mutant(
        "moved-and-not-drained",
        "dispatcher/core/fences/draining_hashes.py",
        "        self.add_entries(holders[is_new], held[is_new], references[is_new], now_ms=now_ms)",
        "        is_new[:1] = False\n"
        "        self.add_entries(holders[is_new], held[is_new], references[is_new], now_ms=now_ms)",
        "the first of the slots that moved does not drain",
    ),
    Mutant(
        "newcomer-gets-the-bound",
        "dispatcher/core/fences/recently_joined.py",
        "return (item[LEDGER], item[ENTRY]) >= bound",
        "return (item[LEDGER], item[ENTRY]) > bound",
        "off by one: a newcomer is given the entry at its bound",
    ),
    Mutant(
        "parked-behind-a-discarded-head",
        "dispatcher/core/queues/replay_queue.py",
        "        self._bury(heap)\n        self._refill(slot)\n        return slot if heap",
        "        self._bury(heap)\n        return slot if heap",
        "what is parked behind an acknowledged head is not brought to the front",
    ),
    Mutant(
        "parked-behind-a-given-head",
        "dispatcher/core/queues/replay_queue.py",
        "        if slot in self.parked.first:\n            self._refill(slot)\n        elif not heap:",
        "        if not heap:",
        "what is parked behind a given head is not brought to the front",
    ),
    Mutant(
        "dropped-and-sent",
        "dispatcher/outbox.py",
        "            if drops == self._drops and self._may_deliver():\n",
        "            if self._may_deliver():\n",
        "what was dropped while its payload was read is sent",
    ),
    Mutant(
        "passed-and-counted",
        "dispatcher/dispatcher.py",
        "            self._reader.forget_delayed_through(through)\n",
        "",
        "a count not lowered: delayed messages that expired",
    ),
    Mutant(
        "dry-for-ever",
        "dispatcher/reader.py",
        "        self._is_tracker_dry = False\n        if self._intake is not None:\n",
        "        if self._intake is not None:\n",
        "a tracker that had nothing once is not asked again",
    ),
    Mutant(
        "popped-before-a-seek",
        "dispatcher/reader.py",
        "        self._popped = None\n        self._is_tracker_dry = False\n        self._to_read_again.clear()\n",
        "        self._is_tracker_dry = False\n        self._to_read_again.clear()\n",
        "what left the tracker before a seek is let in after it",
    ),
    Mutant(
        "taken-early-and-read",
        "dispatcher/core/read_plan.py",
        "        self.taken_early.add(ledger_ids[is_ahead], entry_ids[is_ahead])",
        "        pass",
        "what left the tracker before the scan came by is read again",
    ),
    Mutant(
        "no-room-and-passed",
        "dispatcher/core/read_plan.py",
        "            self.next_immediate = first_not_taken",
        "            self.next_immediate = next_position",
        "immediate entries for which there was no room are lost",
    ),
    Mutant(
        "active-one-too-many",
        "dispatcher/core/single_active.py",
        'permits, side="left"',
        'permits, side="right"',
        "off by one: an active consumer is sent one entry more than it asked for",
    ),
    Mutant(
        "smooth-resume-ends-at-once",
        "dispatcher/reader.py",
        "        if self._core.is_drained(self._log.last_confirmed_position):\n",
        "        if True:\n",
        "a resume at a rate is over while messages wait that it held",
    ),
    Mutant(
        "rate-not-restored",
        "postdate/broker/topics/subscription.py",
        "        self.dispatcher.use_gate(self._gate)\n        self._apply_pause()\n",
        "        self.dispatcher.use_gate(self._gate)\n        if self.pause.is_paused:\n            self._apply_pause()\n",
        "a resume at a rate ends with a restart",
    ),
]

TRACKER: Final = [
    Mutant(
        "timer-without-turn",
        "tracker/shell/next_turn.py",
        "        self.set_timer(None)\n        self.want()\n",
        "        self.set_timer(None)\n",
        "a missing wake-up: the tracker's timer does nothing",
    ),
    Mutant(
        "timer-late",
        "tracker/shell/core_tracker.py",
        "now_ms=self._now_ms())\n        self._turn_soon()\n        return is_tracked\n",
        "now_ms=self._now_ms())\n"
        "        if self._next_turn.timer_at_ms is None:\n"
        "            self._turn_soon()\n"
        "        return is_tracked\n",
        "the timer is not set forward for an earlier message",
    ),
    Mutant(
        "others-not-told",
        "tracker/shared/shared_index.py",
        "                    if view is not asker:\n                        view.tell_soon()\n",
        "",
        "shared index: what one subscription polled, the others are not told of",
    ),
    Mutant(
        "others-acknowledged-it",
        "tracker/shared/shared_index.py",
        "        rows = rows.take(~is_in(self._cursor.acknowledged_in, rows.ledger_ids, rows.entry_ids))\n",
        "",
        "shared index: a view keeps what its subscription has acknowledged",
    ),
    Mutant(
        "behind-and-not-read-again",
        "tracker/shared/shared_index.py",
        "            self._to_read_again.unite(ledger_id, entry_ids)\n            limit",
        "            limit",
        "shared index: due messages of which a view keeps the positions alone are never read again",
    ),
    Mutant(
        "handed-out-and-tracked",
        "tracker/columns/position_set.py",
        "            had_one[rows] = is_there\n            self.subtract(ledger_id, taken)\n",
        "            had_one[rows] = is_there\n",
        "a bit that is not cleared: what was handed out counts, and comes again from another row",
    ),
    Mutant(
        "handed-out-and-not-kept",
        "tracker/core/handing_out.py",
        "    if state.recovering:\n        _keep_gone(state, handed_out)\n",
        "",
        "what was handed out comes again from a bucket whose head is read later",
    ),
    Mutant(
        "acknowledged-and-recovered",
        "tracker/core/recovering.py",
        "            left = entry_ids - state.acknowledged_in(ledger_id) - ",
        "            left = entry_ids - ",
        "a head sets the bits of what is acknowledged",
    ),
    Mutant(
        "merge-takes-over-too-much",
        "tracker/core/merging.py",
        "    next_deliver_at_ms = min(source.barrier.deliver_at_ms for source in sources)\n",
        "    next_deliver_at_ms = max(source.barrier.deliver_at_ms for source in sources)\n",
        "of a merged bucket, rows count as loaded that one of its sources had not loaded",
    ),
    Mutant(
        "sources-stay",
        "tracker/core/merging.py",
        "    for source in sources:\n        remove(state, source)\n",
        "",
        "the sources of a merge are not deleted",
    ),
    Mutant(
        "property-stays",
        "tracker/core/deleting.py",
        "    elif bucket.has_name:\n        move(state, bucket, Phase.UNNAMING)\n",
        "",
        "the property of a deleted snapshot stays",
    ),
    Mutant(
        "failed-create-not-searched",
        "postdate/broker/topics/snapshot_sweep.py",
        "                self._failed_before = failed\n                self.note_left()\n",
        "                self._failed_before = failed\n",
        "a snapshot whose creation failed after its effect stays without an owner until the next start",
    ),
    Mutant(
        "lost-and-not-read-again",
        "tracker/core/deleting.py",
        "        state.to_read_again.unite(ledger_id, state.tracked.pop_ledger(ledger_id))\n",
        "        state.tracked.pop_ledger(ledger_id)\n",
        "positions of a lost snapshot are not read from the log again",
    ),
    Mutant(
        "no-room-for-the-first",
        "tracker/core/loading.py",
        "    return first_tracked_row(state.queues, bucket.barrier, state.tracked.bitmaps) is None\n",
        "    return False\n",
        "the segment that holds up hand-out is not loaded when no row more may be loaded",
    ),
    Mutant(
        "room-and-no-load",
        "tracker/shell/core_tracker.py",
        "        self._wake_up.wait_for_due()\n        self._turn_soon()\n        return rows\n",
        "        self._wake_up.wait_for_due()\n        return rows\n",
        "a missing wake-up: loads do not go on when there is room again",
    ),
    Mutant(
        "failed-call-not-tried-again",
        "tracker/core/planning.py",
        "        bucket.failures += 1\n        state.lane_of[bucket.phase].want(bucket)\n",
        "        bucket.failures += 1\n",
        "a missing wake-up: a call that failed is not tried again by itself",
    ),
    Mutant(
        "retries-not-let-go",
        "tracker/core/lanes.py",
        "        self._retry = None\n        self.end_waits()\n        return True\n",
        "        return True\n",
        "after a retry that succeeded, no other call that failed is tried again",
    ),
    Mutant(
        "past-what-is-not-loaded",
        "tracker/core/handing_out.py",
        "state.tracked, hand_out_through(state, now_ms), limit)\n",
        "state.tracked, last_key_at(state.due_through_ms(now_ms)), limit)\n",
        "messages are handed out past a segment that is not loaded",
    ),
    Mutant(
        "refused-and-tracked",
        "tracker/core/adding.py",
        "    state.tracked.subtract(ledger_id, entry_ids)\n    state.to_read_again.subtract(ledger_id, entry_ids)\n    # A",
        "    state.to_read_again.subtract(ledger_id, entry_ids)\n    # A",
        "a message that is delivered as it is due stays tracked",
    ),
    Mutant(
        "acknowledged-and-counted",
        "tracker/core/deleting.py",
        "    was_tracked = ledger_id in state.tracked.bitmaps\n    state.tracked.subtract(ledger_id, entry_ids)\n",
        "    was_tracked = ledger_id in state.tracked.bitmaps\n",
        "a count not lowered: messages that were acknowledged without being handed out",
    ),
    Mutant(
        "ended-and-kept",
        "tracker/core/state.py",
        "        heapq.heappush(state.ending, (last_ms, bucket.serial))\n",
        "        pass\n",
        "a bucket of which everything was handed out is not removed",
    ),
    Mutant(
        "row-of-the-last-segment-lost",
        "tracker/core/loading.py",
        "    bucket.loaded_spans = bucket.table.spans_of(call.last_segment)\n",
        "    bucket.loaded_spans = min(bucket.table.spans_of(call.last_segment) + 1, len(bucket.table))\n",
        "off by one: a span counts as loaded that was not",
    ),
]

ITEMS: Final = [
    Mutant(
        "item-1",
        "dispatcher/core/shared.py",
        "        while self.replay_queue.heaps:\n",
        "        while len(self.replay_queue):\n",
        "Shared counts what is still on its way back, and takes from a heap that is not there",
        (
            Edit(
                "dispatcher/core/shared.py",
                "is_for_all = self.replay_queue.may_give(_WHOLE) or",
                "is_for_all = True or",
            ),
            Edit(
                "dispatcher/core/shared.py",
                "if slot is None or not self.replay_queue.may_give(slot):",
                "if slot is None:",
            ),
        ),
    ),
    Mutant(
        "item-2",
        "tracker/shell/wake_up.py",
        "        is_due = deliver_at_ms is not None and deliver_at_ms != self._told_deliver_at_ms\n",
        "        is_due = deliver_at_ms is not None and self._told_deliver_at_ms is None\n",
        "being told of a due message ends with a poll only",
        (
            Edit(
                "tracker/shell/wake_up.py",
                "        self._told_deliver_at_ms = deliver_at_ms\n        self._withheld_ms = withheld_ms\n",
                "        self._told_deliver_at_ms = deliver_at_ms if is_due else self._told_deliver_at_ms\n"
                "        self._withheld_ms = withheld_ms\n",
            ),
            Edit(
                "tracker/shell/core_tracker.py",
                "        if not is_available and self._wake_up.wait_for_due():\n            self._turn_soon()\n",
                "",
            ),
        ),
    ),
    Mutant(
        "item-3",
        "dispatcher/core/read_plan.py",
        "                takes_immediate=is_at_frontier and immediates_max > 0,\n",
        "                takes_immediate=(unscanned.through is not None or is_at_frontier) and immediates_max > 0,\n",
        "a ledger in recovery is put aside with its immediate entries",
        (
            Edit(
                "dispatcher/core/read_plan.py",
                "        if immediates_max == 0 or self.next_immediate > last_confirmed:\n",
                "        for put_aside in self.ranges:\n"
                "            if put_aside.through is not None and put_aside.scanned_to <= self.next_immediate:\n"
                "                end = Position(put_aside.through.ledger_id, put_aside.through.entry_id + 1)\n"
                "                self.next_immediate = max(self.next_immediate, end)\n"
                "        if immediates_max == 0 or self.next_immediate > last_confirmed:\n",
            ),
            Edit(
                "dispatcher/core/read_plan.py",
                "        if first_not_taken is not None:\n            self.next_immediate = first_not_taken\n",
                "        if request.range is not None and request.range.through is not None:\n"
                "            if first_not_taken is not None:\n"
                "                request.range.scanned_to = first_not_taken\n"
                "                return\n"
                "        elif first_not_taken is not None:\n            self.next_immediate = first_not_taken\n",
            ),
        ),
    ),
    Mutant(
        "item-4",
        "tracker/shell/core_tracker.py",
        '            raise TrackerClosedError("clear")\n        self._clear()\n',
        '            raise TrackerClosedError("clear")\n        self._clear()\n'
        "        while self._core.unsettled_count and not (self._is_abandoned or self._is_closed):\n"
        "            await __import__('asyncio').sleep(0.01)\n",
        "a seek waits until the storage has deleted the snapshots",
    ),
    Mutant(
        "item-5",
        "dispatcher/core/fences/recently_joined.py",
        "    def _first_awaited(self) -> Key:\n        # Once",
        "    def _nothing_awaited(self) -> Key:\n        # Once",
        "a newcomer of the classic mode waits for everything before its bound, delayed messages too",
    ),
    Mutant(
        "item-5-room",
        "dispatcher/core/fences/recently_joined.py",
        "    def _first_awaited(self) -> Key:\n        # Once",
        "    def _nothing_awaited(self) -> Key:\n        # Once",
        "the same, where what waits for a newcomer leaves no room for the older due message that would let it go",
        says="there is no room for",
    ),
    Mutant(
        "item-9",
        "dispatcher/core/intake.py",
        "        return self._deliverable.among(self.held_due.take(entries_max, self._admitted_through()))",
        "        return self.held_due.take(entries_max, self._admitted_through())",
        "what is held is let in without asking what is acknowledged",
        (
            Edit(
                "dispatcher/core/intake.py",
                "        return self._make_ready(self._deliverable.among(held))\n",
                "        return self._make_ready(held)\n",
            ),
        ),
    ),
]
"""The faults of issue 13 (items 1 to 5 and 9), each put back alone into the code of today."""

FOUND: Final = [
    Mutant(
        "scanned-without-its-index",
        "dispatcher/reader.py",
        "        if first > plan.needs_index_through or not self._is_recovering(ledger_id):\n",
        "        if True:\n",
        "a ledger is scanned although the tracker has forgotten which of its entries it has",
    ),
    Mutant(
        "batch-weighs-more-than-its-rest",
        "dispatcher/core/key_shared.py",
        "            if items and consumer.heads:\n",
        "            if entries_max <= 0 and consumer.heads:\n",
        "a consumer is not served again after a batch of which a part is acknowledged",
    ),
    Mutant(
        "held-for-a-dry-tracker",
        "dispatcher/reader.py",
        "                return bool(self._intake.held_due)\n",
        "                return False\n",
        "held entries wait for a message that the tracker turned out not to have",
    ),
    Mutant(
        "skipped-and-not-told",
        "postdate/broker/topics/subscription.py",
        "        elif self.dispatcher is not None:\n            self.dispatcher.mark_delete_advanced()\n",
        "",
        "a dispatcher does not hear of what an administrator skipped",
    ),
    Mutant(
        "expiry-told-at-its-end",
        "postdate/broker/topics/topic.py",
        "            await self.ledger.expire(now_ms, ttl_ms, spared=(INDEX_CURSOR_NAME,), on_expired=self._on_expired)\n",
        "            late = []\n"
        "            hear = lambda *expired: late.append(expired)\n"
        "            await self.ledger.expire(now_ms, ttl_ms, spared=(INDEX_CURSOR_NAME,), on_expired=hear)\n"
        "            for expired in late:\n"
        "                self._on_expired(*expired)\n",
        "a dispatcher hears of what expired when all subscriptions had their turn",
    ),
    Mutant(
        "trimmed-and-not-acknowledged",
        "managed_ledger/cursors/cursor_state.py",
        "            return bitmap.copy()\n        if ledger_id == self.mark_delete.ledger_id:\n",
        "            return bitmap.copy()\n        if False:\n",
        "of the trimmed ledger at whose end the cursor stands, nothing counts as acknowledged",
    ),
    Mutant(
        "index-believed-over-the-log",
        "dispatcher/core/intake.py",
        "        if not is_early.any():\n",
        "        if True:\n",
        "what the tracker gives is delivered although it is not due by its header",
        says="before its time",
    ),
    Mutant(
        "timer-each-half-second",
        "tracker/core/planning.py",
        "    times.append(state.merge_wait.until_ms)\n",
        "    times += [now_ms + 500 if state.buckets else -1, state.merge_wait.until_ms]\n",
        "a tracker at rest sets a timer each half second",
    ),
    Mutant(
        "gone-back-and-forgotten",
        "tracker/shared/shared_index.py",
        "        self.refresh()\n        self.tell_lost()\n",
        "        self.tell_lost()\n",
        "a shared index forgets what a subscription offers that went back behind the slowest one",
    ),
    Mutant(
        "closed-index-is-a-defect",
        "dispatcher/dispatcher.py",
        "        if isinstance(defect, TrackerClosedError):",
        "        if False:",
        "a consumer that comes while its topic closes meets a closed index, which is told as a defect",
    ),
    Mutant(
        "due-and-acknowledged-counts-twice",
        "tracker/shared/shared_index.py",
        "sum(self._count_left(*bitmap) for bitmap in due)",
        "sum(len(bitmap) for _, bitmap in due)",
        "msgDelayed of a shared index: what is due and acknowledged is subtracted twice",
    ),
    Mutant(
        "steps-of-the-clock-unseen-by-jobs",
        "postdate/broker/service/scheduler.py",
        "        if self._scheduler is not None:\n            for job, scheduled",
        "        if False:\n            for job, scheduled",
        "after a step of the wall clock jobs are not set anew: none has a turn until the time has come again, or all that "
        "seem missed are listed",
        says="has had no turn|turns were listed|after the last one",
    ),
]
"""Faults that the simulation found, each put back alone."""

SCHEDULED: Final = [
    Mutant(
        "published-and-not-durable",
        "postdate/broker/scheduled/publishing.py",
        "await replacement.durable",
        "await Turns().give_way()",
        "a publish over HTTP is answered before its messages are durable",
        says="is not durable",
    ),
    Mutant(
        "cancelled-in-hand",
        "postdate/broker/scheduled/operations.py",
        "            new = [at for at in left if at not in in_hand_here] if in_hand_here else left\n",
        "            new = left\n",
        "a cancel counts messages that a consumer has",
        says="was cancelled while",
    ),
    Mutant(
        "change-without-its-turn",
        "postdate/broker/topics/change_order.py",
        "        before = [one for one in self._changes if change.must_wait_for(one)]\n",
        "        before: list[ScheduledChange] = []\n",
        "a cancel of everything does not wait for a move under way",
        says="is still to come",
    ),
    Mutant(
        "schedules-of-one-id-at-once",
        "postdate/broker/topics/change_order.py",
        " and self.own_ids.isdisjoint(other.own_ids):\n",
        " and self.kind == other.kind:\n",
        "two that schedule one id do not wait for each other",
        says="are all scheduled under the id",
    ),
    Mutant(
        "scheduled-beside-the-old-one",
        "postdate/broker/scheduled/operations.py",
        "append({one.cursor: by_ledger(positions) for one, positions in given_up.items()})",
        "append({})",
        "a message that is scheduled by its id leaves the old one in place",
        says="are all scheduled under the id",
    ),
    Mutant(
        "moved-and-not-seen",
        "postdate/broker/scheduled/moment.py",
        "subscription.cursor.durably_acknowledged_in(one.ledger_id)",
        "subscription.cursor.acknowledged_in(one.ledger_id)",
        "a look misses messages that are being moved",
        says="a look misses",
    ),
]
"""Faults of lists, cancels and moves of scheduled messages."""

OWNERS: Final = [
    Mutant(
        "receipt-before-its-object",
        "managed_ledger/objects/shipped_database.py",
        "            self._create(LogObject(self._epoch, self._owner, self._next, changes).encode())\n",
        "            number, self._next = self._next, self._next + 1\n"
        "            data = LogObject(self._epoch, self._owner, number, changes).encode()\n"
        "            create = partial(self._objects.create, log_name(number), data)\n"
        "            threading.Thread(target=create).start()\n",
        "a round is answered before its object is stored",
        variant="objects",
        says="was durable|stored as acknowledged|did not survive",
    ),
    Mutant(
        "no-answer-is-an-answer",
        "managed_ledger/objects/shipped_database.py",
        "                try:\n"
        "                    patience.wait(self._objects, error)\n"
        "                except LogFencedError as given_up:\n"
        "                    self._lose(str(given_up))\n"
        "                    raise\n"
        "                continue\n"
        "            if not is_own:\n",
        "                is_own = True\n            if not is_own:\n",
        "what the storage has not answered is taken for stored",
        variant="objects",
        says="was durable|stored as acknowledged|did not survive",
    ),
    Mutant(
        "serves-after-a-fence",
        "managed_ledger/objects/shipped_database.py",
        "            if not is_own:\n",
        "            if not is_own and self._given_up.is_set():\n",
        "an owner that finds another's object in its place goes on",
        variant="objects",
        says="a woken owner gave a receipt",
    ),
    Mutant(
        "fences-deleted",
        "managed_ledger/objects/bundle_checkpoints.py",
        "without(range(before.start, start), self._fences)",
        "without(range(before.start, start), ())",
        "a checkpoint deletes the fences before it",
        variant="objects",
        says="a woken owner gave a receipt",
    ),
    Mutant(
        "delivers-after-its-lease",
        "postdate/broker/service/service.py",
        "            may_deliver=owners.may_deliver,\n",
        "            may_deliver=lambda _bundle: True,\n",
        "a woken owner delivers, as its own clock is not asked",
        variant="objects",
        says="a woken owner delivered",
    ),
]
"""Faults of owners of bundles on object storage."""
