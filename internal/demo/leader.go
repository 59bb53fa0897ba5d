package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/fencectl/fencectl/fenced"
)

// leaderLease is the time limit of a leadership. etcd counts whole seconds, and has a minimum, which is this as it is shipped.
const leaderLease = 2 * time.Second

// leaderRevision is about which of etcd's many growing numbers is a token. The election is etcd's own, package concurrency.
func leaderRevision() Scenario {
	const job = "settle-payments"
	setup := fmt.Sprintf(`
		SELECT fencing.unprotect('shop.jobs', drop_column => true);
		UPDATE shop.jobs SET state = 'queued', orders_settled = 0 WHERE name = '%s';
		SELECT fencing.protect('shop.jobs', mode => 'reentrant');`, job)
	return Scenario{
		Name:  "leader-revision",
		Title: "leaders of etcd, and the wrong one of its revisions as the token",
		Story: `Two workers stand for election in etcd, whose revisions only grow, so one of them makes a fine token. In the first run it is
the revision in the header of the latest answer, which is that of the whole store: it grows with everything that anybody writes, and a
leader that publishes its address has a token newer than the candidate who queued up before that. When A is paused and B is
elected, the fence knows only that B's number is lower.`,
		Lesson: `What identifies a leadership is the revision at which its key was created: it never changes while the leadership lasts, and the
keys of later candidates have greater ones. The header's revision says when somebody asked, not who leads.`,
		needs: []need{needsEtcd},
		without: form{
			label: "a row fence on shop.jobs; the header's revision as the token", setup: setup, fence: jobFence(job),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				return playLeaders(ctx, s, job, (*worker).campaignPlainly)
			},
		},
		with: form{
			label: "the same fence; the create revision of the leader's key as the token", setup: setup, fence: jobFence(job),
			play: func(ctx context.Context, s *stage) (verdict, error) {
				return playLeaders(ctx, s, job, (*worker).campaign)
			},
		},
	}
}

// A campaign makes the worker the leader, having waited for it, and returns how it publishes its address then.
type campaign func(w *worker, ctx context.Context, election string) (publish func(context.Context) error, err error)

// campaign leads through this toolkit's source.
func (w *worker) campaign(ctx context.Context, election string) (publish func(context.Context) error, err error) {
	source, err := w.election(leaderLease)
	if err != nil {
		return nil, err
	}
	grant, err := source.Acquire(ctx, election)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	w.elected(election, grant.Token(), "is elected; its token is the create revision of its key")
	w.holds(grant)
	return func(ctx context.Context) error {
		answer, err := w.etcd.Put(ctx, w.stage.place.etcd.prefix+"/address/"+election, w.name)
		if err != nil {
			return fmt.Errorf("%s: publishing its address: %w", w.name, err)
		}
		w.published(election, fmt.Sprintf("publishes its address; the store is at revision %d, and the token stays as it is", answer.Header.Revision))
		return nil
	}, nil
}

// campaignPlainly leads with etcd's own package, and takes for its token what the header of the latest answer says.
func (w *worker) campaignPlainly(ctx context.Context, election string) (publish func(context.Context) error, err error) {
	client, err := w.etcdClient()
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(leaderLease.Seconds())))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	w.later(func(context.Context) error {
		if err := session.Close(); !errors.Is(err, rpctypes.ErrLeaseNotFound) { // it has expired, as it should
			return err
		}
		return nil
	})
	e := concurrency.NewElection(session, w.stage.place.etcd.queue(election))
	if err := e.Campaign(ctx, w.name); err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	w.elected(election, fenced.Token(e.Header().Revision), "is elected; its token is the revision in the answer's header")
	return func(ctx context.Context) error {
		if err := e.Proclaim(ctx, w.name); err != nil {
			return fmt.Errorf("%s: publishing its address: %w", w.name, err)
		}
		w.token = fenced.Token(e.Header().Revision)
		w.published(election, fmt.Sprintf("publishes its address (Proclaim); the header says %d now", w.token))
		return nil
	}, nil
}

func (w *worker) elected(election string, token fenced.Token, text string) {
	if w.gate != nil {
		w.gate.pass()
	}
	w.token = token
	w.granted(election, leaderLease, text)
}

func (w *worker) published(election, text string) {
	w.record(Event{Kind: Notified, On: election, Toward: Locks, Text: text})
}

// queue is where the keys of an election's candidates are, without a slash at the end.
func (e *etcdPlace) queue(election string) string { return e.prefix + "/" + election }

// candidates counts them, the leader too.
func (e *etcdPlace) candidates(ctx context.Context, election string) (int64, error) {
	answer, err := e.client.Get(ctx, e.queue(election)+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("counting the candidates: %w", err)
	}
	return answer.Count, nil
}

func playLeaders(ctx context.Context, s *stage, job string, stand campaign) (verdict, error) {
	a, b, err := s.twoWorkers(ctx)
	if err != nil {
		return verdict{}, err
	}
	publish, err := stand(a, ctx, job)
	if err != nil {
		return verdict{}, err
	}
	err = b.waitsWhile(ctx, Event{On: job, Toward: Locks, Text: "stands for election too, and is next in the queue"},
		func(ctx context.Context) (bool, error) {
			n, err := s.place.etcd.candidates(ctx, job)
			return n == 2, err
		},
		func(ctx context.Context) error {
			_, err := stand(b, ctx, job)
			return err
		},
		func(ctx context.Context) error {
			if err := publish(ctx); err != nil {
				return err
			}
			if _, err := a.write(ctx, progress(job, 300)); err != nil {
				return err
			}
			a.sleeps()
			return nil
		})
	if err != nil {
		return verdict{}, err
	}
	if _, err := b.write(ctx, progress(job, allOrders)); err != nil {
		return verdict{}, err
	}
	a.goesOn("wakes up, and believes that it leads")
	if _, err := a.write(ctx, progress(job, 600)); err != nil {
		return verdict{}, err
	}
	state, orders, err := progressOf(ctx, s, job)
	switch {
	case err != nil:
		return verdict{}, err
	case state != "done" || orders != allOrders:
		return damage("the leader, B, is locked out, and A goes on: %s, %d of %d", state, orders, allOrders), nil
	}
	return intact("B's token is newer; A's late write is refused, and the job stays done"), nil
}
