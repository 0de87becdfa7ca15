package placement

import (
	"fmt"
	"html"
	"io"
	"slices"

	"nvmecr/balancer/hostlist"
)

// Sizes of the drawing, in pixels.
const (
	svgRow    = 22
	svgPad    = 14
	svgBox    = 240
	svgGap    = 320
	svgLetter = 12
)

// maxRows is the maximum number of nodes and targets with a row of their own. Otherwise those of a switch share a
// row.
const maxRows = 200

// SVG writes a drawing: the nodes on the left, the targets on the right, both by switch, and lines from nodes to
// their targets. A line is red if ranks and their target share a failure domain.
func (p *Plan) SVG(w io.Writer) error {
	left, right := p.columns()
	d := &drawing{w: w}
	height := max(left.height(), right.height()) + 3*svgRow
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="%d">`+"\n",
		2*svgBox+svgGap+2*svgPad, height, svgLetter)
	d.printf(`<rect width="100%%" height="100%%" fill="white"/>` + "\n")
	d.text(svgPad, svgRow, fmt.Sprintf("%d ranks, %d targets, %s; %.1f switches between a rank and its target", p.Ranks(), len(p.Targets), p.Kind, float64(p.Hops)/float64(p.Ranks())))
	left.place(svgPad, 2*svgRow)
	right.place(svgPad+svgBox+svgGap, 2*svgRow)
	p.lines(d, left, right)
	left.draw(d)
	right.draw(d)
	d.printf("</svg>\n")
	return d.err
}

type drawing struct {
	w   io.Writer
	err error
}

func (d *drawing) printf(format string, args ...any) {
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format, args...)
	}
}

func (d *drawing) text(x, y int, text string) {
	d.printf(`<text x="%d" y="%d">%s</text>`+"\n", x, y, html.EscapeString(text))
}

// column is one side of the drawing: boxes for switches, with rows for nodes or targets.
type column struct {
	boxes []box
	row   []int // row of each host or target, counted over all boxes
	y     []int // position of each row
	x     int
}

type box struct {
	name string
	rows []string
}

func (c *column) height() (n int) {
	for _, b := range c.boxes {
		n += (len(b.rows)+1)*svgRow + svgPad
	}
	return n
}

// add adds a node or target to a row of its own, or to the row of its switch.
func (c *column) add(at, text string, own bool) {
	i := slices.IndexFunc(c.boxes, func(b box) bool { return b.name == at })
	if i < 0 {
		i = len(c.boxes)
		c.boxes = append(c.boxes, box{name: at})
	}
	b := &c.boxes[i]
	if own || len(b.rows) == 0 {
		b.rows = append(b.rows, text)
	}
	c.row = append(c.row, i<<32|len(b.rows)-1)
}

// place sets the positions of boxes and rows.
func (c *column) place(x, y int) {
	c.x = x
	first := make([]int, len(c.boxes))
	for i, b := range c.boxes {
		first[i] = len(c.y)
		for n := range b.rows {
			c.y = append(c.y, y+(n+1)*svgRow+svgRow/2)
		}
		y += (len(b.rows)+1)*svgRow + svgPad
	}
	for i, r := range c.row {
		c.row[i] = first[r>>32] + r&(1<<32-1)
	}
}

func (c *column) draw(d *drawing) {
	n := 0
	for _, b := range c.boxes {
		top := c.y[n] - svgRow/2 - svgRow
		d.printf(`<rect x="%d" y="%d" width="%d" height="%d" rx="5" fill="#f4f6f8" stroke="#8899aa"/>`+"\n", c.x, top, svgBox, (len(b.rows)+1)*svgRow)
		d.text(c.x+6, top+svgRow-7, b.name)
		for _, r := range b.rows {
			d.text(c.x+18, c.y[n]+4, r)
			n++
		}
	}
}

// columns returns the two sides.
func (p *Plan) columns() (left, right *column) {
	left, right = new(column), new(column)
	atSwitch := make(map[string][]string)
	var where []string
	for _, h := range p.job.Hosts {
		at := "not in the topology"
		if w := p.host(h.Name); w.at >= 0 {
			at = p.net.Name(w.at)
		}
		where = append(where, at)
		atSwitch[at] = append(atSwitch[at], h.Name)
	}
	own := len(p.job.Hosts) <= maxRows
	for i, h := range p.job.Hosts {
		text := fmt.Sprintf("%s: %d ranks", h.Name, h.Ranks)
		if !own {
			text = hostlist.Compress(atSwitch[where[i]])
		}
		left.add(where[i], text, own)
	}
	own = len(p.Targets) <= maxRows
	for i := range p.Targets {
		t := &p.Targets[i]
		text := fmt.Sprintf("%s: %d ranks", t.Name, t.Ranks)
		if !own {
			text = "targets of this switch"
		}
		right.add(p.place(t), text, own)
	}
	return left, right
}

// lines draws the lines from nodes to targets, each pair of rows once.
func (p *Plan) lines(d *drawing, left, right *column) {
	type pair struct{ from, to int }
	ranks, shared := make(map[pair]int), make(map[pair]bool)
	var order []pair
	for _, s := range p.Shares {
		k := pair{left.row[s.Host], right.row[s.Target]}
		if ranks[k] == 0 {
			order = append(order, k)
		}
		ranks[k] += s.Ranks
		shared[k] = shared[k] || p.sharesDomain(s)
	}
	highest := 1
	for _, n := range ranks {
		highest = max(highest, n)
	}
	for _, k := range order {
		color := "#3377bb"
		if shared[k] {
			color = "#cc2222"
		}
		x1, x2 := left.x+svgBox, right.x
		y1, y2 := left.y[k.from], right.y[k.to]
		d.printf(`<path d="M%d %d C%d %d %d %d %d %d" fill="none" stroke="%s" stroke-opacity="0.6" stroke-width="%.1f"><title>%d ranks</title></path>`+"\n",
			x1, y1, x1+svgGap/2, y1, x2-svgGap/2, y2, x2, y2, color, 1+5*float64(ranks[k])/float64(highest), ranks[k])
	}
}

// sharesDomain reports whether ranks and their target share a failure domain of any kind.
func (p *Plan) sharesDomain(s Share) bool {
	name, t := p.job.Hosts[s.Host].Name, &p.Targets[s.Target].Target
	own := p.domains(p.host(name), name)
	for _, d := range p.domains(p.target(t), t.Node) {
		if slices.Contains(own, d) {
			return true
		}
	}
	return false
}
