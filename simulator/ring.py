"""The scenario "ring": nodes join, leave, die, restart and are cut off while messages are lost, doubled and late.

Then the network calms down, the ring gets time to repair itself, and everything that the design promises of a
repaired ring is asserted: leaf sets are the true neighbours, every route ends at the live node nearest to its key
within ⌈log N⌉ hops, a multicast reaches every member once, a gather counts every member once.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ring.overlay.node import Node
from holdfast.ring.overlay.settings import Settings
from simulator.network import Weather, name
from simulator.ring_world import RingWorld
from simulator.scenario import broken

GROUPS = 2


class Ring:
    """``make`` is for planting bugs: it makes the nodes."""

    def __init__(self, seed: int, trace: bool = False, make: Callable[..., Node] = Node) -> None:
        self.ring = RingWorld(seed, trace=trace, make=make)
        self.world = self.ring.world
        chance = self.chance = self.world.random
        bits, leaves = chance.choice([(4, 24), (4, 16), (2, 8), (1, 8), (1, 4)])
        self.ring.settings = Settings(bits=bits, leaves=leaves)
        self.ring.network.weather = Weather(delay=0.002, jitter=0.02, timeout=0.3)
        self.first = chance.randrange(2, 30)
        self.groups = [chance.getrandbits(128) for _ in range(GROUPS)]
        self.subscribed: list[set[int]] = [set() for _ in range(GROUPS)]
        self.dead: list[int] = []

    def run(self) -> str:
        self.build()
        for _ in range(self.chance.randrange(20, 50)):
            self.chance.choice(self.mishaps())()
            self.world.run_for(self.chance.random() * 1.5)
        self.ring.network.calm()
        self.world.note("all", "the network is calm")
        self.world.run_for(60)
        self.check()
        return (
            f"{len(self.ring.ids)} nodes, b = {self.ring.settings.bits}, {self.ring.settings.leaves} leaves, "
            f"{self.ring.network.messages:,} messages, {self.ring.lost:,} losses noticed, {self.world.now:.0f} s"
        )

    # ------------------------------------------------------------------------------------------------ what happens

    def build(self) -> None:
        self.ring.start()
        for _ in range(self.first - 1):
            self.join()
            self.world.run_for(self.chance.random() * 0.2)

    def mishaps(self) -> list[Callable[[], None]]:
        always = [self.join, self.leave, self.kill, self.restart, self.lookup, self.subscribe, self.weather]
        return [*always, self.lookup, self.publish, self.collect, self.unsubscribe, self.part, self.heal, self.slow]

    def anyone(self) -> int | None:
        members = self.ring.members()
        return self.chance.choice(members) if members else None

    def join(self) -> None:
        contact = self.anyone()
        if contact is not None:
            self.ring.start(contact)

    def leave(self) -> None:
        if len(self.ring.members()) > 2 and (one := self.anyone()) is not None:
            self.forget(one)
            self.ring.leave(one)

    def kill(self) -> None:
        """Up to a third of the smaller half of a leaf set at once: so much the design survives."""
        for _ in range(self.chance.randrange(1, 1 + max(1, self.ring.settings.leaves // 6))):
            if len(self.ring.members()) > 2 and (one := self.anyone()) is not None:
                self.forget(one)
                self.ring.kill(one)
                self.dead.append(one)

    def restart(self) -> None:
        if self.dead and (contact := self.anyone()) is not None:
            self.ring.start(contact, self.dead.pop())

    def forget(self, one: int) -> None:
        for members in self.subscribed:
            members.discard(one)

    def part(self) -> None:
        some = self.chance.randrange(1, len(self.ring.ids) + 1)
        side = self.chance.sample(self.ring.ids, some)
        self.world.note("all", f"{some} nodes are cut off")
        self.ring.network.part(side)

    def heal(self) -> None:
        self.world.note("all", "the cut heals")
        self.ring.network.heal()

    def slow(self) -> None:
        if (one := self.anyone()) is not None:
            self.ring.network.slow = {one: self.chance.random() * 0.5}

    def weather(self) -> None:
        level = self.chance.choice([0.0, 0.02, 0.1])
        self.ring.network.change(loss=level, doubled=level, late=level)

    def lookup(self) -> None:
        if (one := self.anyone()) is not None:
            self.ring.lookup(one, self.chance.getrandbits(128), receipt=True)

    def subscribe(self) -> None:
        for number, group in enumerate(self.groups):
            if (one := self.anyone()) is not None:
                self.subscribed[number].add(one)
                self.ring.subscribe(one, group)

    def unsubscribe(self) -> None:
        number = self.chance.randrange(GROUPS)
        if self.subscribed[number]:
            one = self.chance.choice(sorted(self.subscribed[number]))
            self.subscribed[number].discard(one)
            self.ring.unsubscribe(one, self.groups[number])

    def publish(self) -> None:
        if (one := self.anyone()) is not None:
            self.ring.publish(one, self.chance.choice(self.groups), ("in the storm", self.world.now))

    def collect(self) -> None:
        if (one := self.anyone()) is not None:
            self.ring.collect(one, self.chance.choice(self.groups), ("in the storm", self.world.now))

    # ------------------------------------------------------------------------------------------------------- promises

    def check(self) -> None:
        self.check_leaves()
        self.check_storm()
        self.check_routes()
        self.check_groups()

    def fail(self, what: str) -> None:
        broken("ring", self.world, what)

    def check_leaves(self) -> None:
        if outside := set(self.ring.ids) - set(self.ring.members()):
            self.fail(f"{sorted(map(name, outside))} never joined.")
        for own in self.ring.ids:
            node = self.ring.host(own).node
            wrong = set(node.leaves) ^ self.ring.true_leaves(own)
            if wrong:
                missing = sorted(map(name, wrong - set(node.leaves)))
                extra = sorted(map(name, wrong & set(node.leaves)))
                self.fail(f"The leaf set of {name(own)} lacks {missing} and should not have {extra}.")

        if wrong_entries := self.ring.wrong_entries():
            self.fail(f"{wrong_entries} places in routing tables hold a dead node, or nobody although there is one.")

    def check_storm(self) -> None:
        """What must hold in the storm too: nobody hears or is counted twice."""
        for payload, hearers in self.ring.heard.items():
            twice = {one for one in hearers if hearers.count(one) > 1 and not self.restarted(one)}
            if twice:
                self.fail(f"{payload} was heard twice by {sorted(map(name, twice))}.")
        for question, result in self.ring.gathered.items():
            answers = result.value or ()
            if len(set(answers)) != len(answers) or len(answers) != result.members:
                self.fail(f"{question} counted {result.members} members, who were {sorted(map(name, answers))}.")

    def restarted(self, one: int) -> bool:
        return self.ring.incarnation(one) > 1

    def check_routes(self) -> None:
        self.ring.delivered.clear()
        keys = [self.chance.getrandbits(128) for _ in range(40)]
        for key in keys:
            self.ring.lookup(self.chance.choice(self.ring.ids), key)
        self.world.run_for(2)
        deliveries = list(self.ring.delivered.values())
        if len(deliveries) != len(keys):
            self.fail(f"Of {len(keys)} messages {len(deliveries)} were delivered.")
        for places in deliveries:
            if len(places) != 1:
                self.fail(f"A message was delivered {len(places)} times.")
            at, key, hops = places[0]
            if at != self.ring.nearest(key):
                self.fail(f"{name(key)} went to {name(at)}, but {name(self.ring.nearest(key))} is nearest.")
            if hops > self.ring.due_hops(key):
                self.fail(
                    f"{name(key)} took {hops} hops among {len(self.ring.ids)}: {self.ring.due_hops(key)} are due."
                )

    def check_groups(self) -> None:
        for number, group in enumerate(self.groups):
            for own in self.ring.ids:
                if self.chance.random() < 0.3:
                    self.subscribed[number].add(own)
                    self.ring.subscribe(own, group)
        self.world.run_for(5)
        for number, group in enumerate(self.groups):
            source = self.chance.choice(self.ring.ids)
            self.ring.publish(source, group, ("calm", number))
            self.ring.collect(source, group, ("calm", number))
        self.world.run_for(5)
        for number, members in enumerate(self.subscribed):
            hearers = sorted(self.ring.heard[("calm", number)])
            if hearers != sorted(members):
                self.fail(f"Of {len(members)} members {len(set(hearers))} heard a publication {len(hearers)} times.")
            result = self.ring.gathered.get(("calm", number))
            if result is None or not result.whole or sorted(result.value or ()) != sorted(members):
                self.fail(f"A gather among {len(members)} members ended as {result}.")
