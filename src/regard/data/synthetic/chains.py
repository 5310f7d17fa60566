"""The built-in chains: helices, strands and turns with ideal bond lengths and angles, whose geometry is known.

A chain is a function of (seed, number). Each residue's torsion angles follow from its letter, so that a sequence tells
its geometry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from regard.data.proteins.structures import ATOMS, Chain

N_CA, CA_C, C_N = 1.458, 1.525, 1.329  # Å (Engh and Huber 1991)
N_CA_C, CA_C_N, C_N_CA = (math.radians(each) for each in (111.0, 117.2, 121.7))
SEGMENTS = {  # of each kind: its residues, torsion angles phi and psi in degrees, fewest and most residues
    "helix": ("AELMQKRH", (-57.0, -47.0), (8, 16)),
    "strand": ("VIYCWFT", (-119.0, 113.0), (4, 9)),
}
TURNS = {"G": (57.0, 47.0), "N": (-60.0, -30.0), "P": (-75.0, 150.0), "S": (-70.0, -20.0), "D": (-90.0, 0.0)}
TURN = (2, 4)  # fewest and most residues
ANGLES = {letter: angles for letters, angles, _ in SEGMENTS.values() for letter in letters} | TURNS


def backbone_from_angles(
    phi: Float[np.ndarray, L], psi: Float[np.ndarray, L], omega: Float[np.ndarray, L] | None = None
) -> Float[np.ndarray, "L 3 3"]:
    """N, Cα and C of a chain by its torsion angles in radians, each atom placed after the three before it.

    omega[i] is the torsion of the bond before residue i, 180° if it is not given; phi[0], omega[0] and psi[-1] have no
    effect.
    """
    flat = np.full(len(phi), math.pi) if omega is None else omega
    start = np.array([[0, 0, 0], [N_CA, 0, 0], [N_CA - CA_C * math.cos(N_CA_C), CA_C * math.sin(N_CA_C), 0]])
    atoms = list(start.astype(np.float64))
    for number in range(1, len(phi)):
        atoms.append(_placed(atoms, C_N, CA_C_N, psi[number - 1]))
        atoms.append(_placed(atoms, N_CA, C_N_CA, flat[number]))
        atoms.append(_placed(atoms, CA_C, N_CA_C, phi[number]))
    return np.stack(atoms).reshape(len(phi), 3, 3)


def _placed(atoms: list[np.ndarray], length: float, angle: float, torsion: float) -> np.ndarray:
    """The next atom, by its bond length, bond angle and torsion angle with the last three."""
    a, b, c = atoms[-3:]
    forward = (c - b) / np.linalg.norm(c - b)
    normal = np.cross(b - a, forward)
    normal /= np.linalg.norm(normal)
    side = np.cross(normal, forward)
    out = math.sin(angle) * (math.cos(torsion) * side + math.sin(torsion) * normal)
    return c + length * (-math.cos(angle) * forward + out)


def ideal_cb(backbone: Float[np.ndarray, "L 3 3"]) -> Float[np.ndarray, "L 3"]:
    """Where Cβ is in an ideal residue."""
    n, ca, c = backbone[:, 0], backbone[:, 1], backbone[:, 2]
    to_ca, to_c = ca - n, c - ca
    return ca - 0.58273431 * np.cross(to_ca, to_c) + 0.56802827 * to_ca - 0.54067466 * to_c


def chain_of(name: str, sequence: str) -> Chain:
    """The chain whose torsion angles follow from its letters; other letters than those of `ANGLES` are a KeyError."""
    phi, psi = np.radians(np.array([ANGLES[letter] for letter in sequence])).T
    backbone = backbone_from_angles(phi, psi)
    backbone = backbone - backbone[:, 1].mean(axis=0)
    chain = Chain.of(name, sequence, np.concatenate([backbone, ideal_cb(backbone)[:, None]], axis=1), ATOMS)
    glycine = [letter == "G" for letter in sequence], ATOMS.index("CB")  # it has no Cβ
    chain.known[glycine], chain.atoms[glycine] = False, 0
    return chain


def built_in_chain(seed: int, number: int, length: tuple[int, int] = (24, 64)) -> Chain:
    """One chain of segments with turns between them."""
    rng = np.random.default_rng([seed, 1, number])
    wanted, letters = int(rng.integers(length[0], length[1] + 1)), ""
    while len(letters) < wanted:
        pool, _, (fewest, most) = SEGMENTS[str(rng.choice(list(SEGMENTS)))]
        letters += "".join(rng.choice(list(pool), int(rng.integers(fewest, most + 1))))
        letters += "".join(rng.choice(list(TURNS), int(rng.integers(TURN[0], TURN[1] + 1))))
    return chain_of(f"chain-{seed}-{number:04d}", letters[:wanted])


def built_in_chains(seed: int, count: int, length: tuple[int, int] = (24, 64)) -> Iterator[Chain]:
    """The first chains of a seed."""
    return (built_in_chain(seed, number, length) for number in range(count))
