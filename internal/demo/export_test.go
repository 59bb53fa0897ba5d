package demo

// Unguarded is the scenario with its protection left out: what a fence that lets everything through would look like.
func (s Scenario) Unguarded() Scenario {
	s.with = s.without
	return s
}

// Guarded is the scenario whose control is protected too: the damage cannot show.
func (s Scenario) Guarded() Scenario {
	s.without = s.with
	return s
}
