// The server as its page asks it; see CONTRACT.md for the requests.

import { ADDRESSES, bodyOf, type Ask } from "./requests";

export interface Model {
  name: string;
  family: string;
  layers: number;
  scopes: string[];
  causal: boolean;
  max_tokens: number | null;
  head: string | null;
  two_stacks: boolean;
  loaded: boolean;
}

export interface Offer {
  models: Model[];
  limits: Record<string, number>;
  example: { model: string; text: string } | null;
}

export interface Status {
  id: string;
  state: "queued" | "running" | "done" | "failed" | "cancelled";
  position: number | null;
  layers_done: number;
  layers: number;
  error: string | null;
}

const WAIT = 300; // milliseconds between two questions about progress

/** Asks one question at a time. */
export class Client {
  private running: string | null = null;

  get busy(): boolean {
    return this.running !== null;
  }

  /** The models, the limits and the example. */
  async offer(): Promise<Offer> {
    return answer<Offer>(await fetch("api/models"));
  }

  /** The bytes of an answer, or the status of a question that failed or was cancelled. */
  async ask(ask: Ask, watch: (status: Status) => void): Promise<Uint8Array | Status> {
    try {
      const { id } = await answer<{ id: string }>(
        await fetch(ADDRESSES[ask.mode], {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(bodyOf(ask)),
        }),
      );
      this.running = id;
      const status = await this.wait(id, watch);
      if (status.state !== "done") return status;
      const response = await fetch(`api/analyses/${encodeURIComponent(id)}/result`);
      if (!response.ok) await answer(response);
      return new Uint8Array(await response.arrayBuffer());
    } finally {
      this.running = null;
    }
  }

  /** Cancels what is asked now; it ends behind the layer in work. */
  async cancel(): Promise<void> {
    if (this.running === null) return;
    await fetch(`api/analyses/${encodeURIComponent(this.running)}`, { method: "DELETE" });
  }

  private async wait(id: string, watch: (status: Status) => void): Promise<Status> {
    for (;;) {
      const status = await answer<Status>(await fetch(`api/analyses/${encodeURIComponent(id)}`));
      if (status.state !== "queued" && status.state !== "running") return status;
      watch(status);
      await new Promise((done) => setTimeout(done, WAIT));
    }
  }
}

async function answer<T>(response: Response): Promise<T> {
  const body: unknown = await response.json().catch(() => null);
  if (response.ok) return body as T;
  const detail = (body as { detail?: unknown } | null)?.detail;
  throw new Error(detail ? String(detail) : `the server answered ${response.status}; try again`);
}
