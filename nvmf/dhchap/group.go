package dhchap

import (
	"fmt"
	"math/big"
	"sync"

	"filippo.io/bigmod"
)

// A Group is the identifier of a Diffie-Hellman group.
type Group uint8

// NullGroup is for no Diffie-Hellman exchange. The others are the groups of RFC 7919.
const (
	NullGroup Group = iota
	FFDHE2048
	FFDHE3072
	FFDHE4096
	FFDHE6144
	FFDHE8192
)

// ffdhe holds the parameters of the groups. The prime of b bits is
//
//	2^b - 2^(b-64) + (floor(2^(b-130) * e) + x) * 2^64 - 1
//
// and the generator 2. exponent is the length of an exponent in bytes. It is more than
// twice the strength that the RFC states for the group. A longer exponent would only
// take more time.
var ffdhe = [...]struct {
	bits     uint
	x        int64
	exponent int
}{
	FFDHE2048: {2048, 560316, 32},
	FFDHE3072: {3072, 2625351, 40},
	FFDHE4096: {4096, 5736041, 48},
	FFDHE6144: {6144, 15705020, 56},
	FFDHE8192: {8192, 10965728, 64},
}

// Size returns the length in bytes of a public value, 0 for NullGroup.
func (g Group) Size() int {
	if g > FFDHE8192 {
		return 0
	}
	return int(ffdhe[g].bits / 8)
}

// String returns the name of the group in RFC 7919.
func (g Group) String() string {
	switch {
	case g == NullGroup:
		return "NULL"
	case g.Size() == 0:
		return fmt.Sprintf("group %d", uint8(g))
	}
	return fmt.Sprintf("ffdhe%d", ffdhe[g].bits)
}

func (g Group) prime() *big.Int {
	p := &ffdhe[g]
	n := eTimes(p.bits - 130)
	n.Add(n, big.NewInt(p.x))
	n.Lsh(n, 64)
	n.Add(n, new(big.Int).Lsh(big.NewInt(1), p.bits))
	n.Sub(n, new(big.Int).Lsh(big.NewInt(1), p.bits-64))
	return n.Sub(n, big.NewInt(1))
}

// eTimes returns floor(2^n * e), e being 1 + 1/1! + 1/2! + ...
func eTimes(n uint) *big.Int {
	const guard = 64 // extra bits for the rounding error of each term
	sum, term := new(big.Int), new(big.Int).Lsh(big.NewInt(1), n+guard)
	for k := int64(1); term.Sign() > 0; k++ {
		sum.Add(sum, term)
		term.Quo(term, big.NewInt(k))
	}
	return sum.Rsh(sum, guard)
}

// moduli has for each group a function that returns its modulus. The first call
// computes it.
var moduli = func() (all [FFDHE8192 + 1]func() *bigmod.Modulus) {
	for g := FFDHE2048; g <= FFDHE8192; g++ {
		all[g] = sync.OnceValue(func() *bigmod.Modulus {
			m, err := bigmod.NewModulus(g.prime().Bytes())
			if err != nil {
				panic(err) // the primes are odd
			}
			return m
		})
	}
	return all
}()

// newKey returns a secret exponent and the public value for the other end. random fills
// a slice with random bytes. The computation takes the same time for each exponent.
func (g Group) newKey(random func([]byte)) (exponent, public []byte) {
	m := moduli[g]()
	exponent = make([]byte, ffdhe[g].exponent)
	random(exponent)
	exponent[0] |= 0x80
	two, err := bigmod.NewNat().SetBytes([]byte{2}, m)
	if err != nil {
		panic(err) // 2 is less than the modulus
	}
	return exponent, bigmod.NewNat().Exp(two, exponent, m).Bytes(m)
}

// shared returns the shared secret, which is as long as the prime. public is the other
// end's public value, which may lack leading zeros. Public values are refused if
// anybody could compute the shared secret from them.
func (g Group) shared(exponent, public []byte) ([]byte, *Error) {
	m := moduli[g]()
	y, err := bigmod.NewNat().SetBytes(public, m)
	if err != nil {
		return nil, fail(IncorrectPayload, "the public value is not below the prime of %s", g)
	}
	// 0, 1 and p-1 are the values of small order.
	if y.IsZero() == 1 || y.IsOne() == 1 || y.IsMinusOne(m) == 1 {
		return nil, fail(IncorrectPayload, "the public value is 0, 1 or the prime of %s less 1", g)
	}
	return bigmod.NewNat().Exp(y, exponent, m).Bytes(m), nil
}
