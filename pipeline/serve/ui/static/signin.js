// Signing in: the whole page at the start, a dialog over it when a session ends.
import { Refused, signIn } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";

export function SignIn({ user = "", why }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const first = useRef(null);
  const password = useRef(null);
  useEffect(() => (user ? password : first).current.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    setBusy(true);
    setError("");
    try {
      await signIn(form.get("user"), form.get("password"));
    } catch (refused) {
      setError(refused instanceof Refused ? refused.message : "The server does not answer. Try again.");
      setBusy(false);
      password.current.select();
    }
  };
  return html`
    <form onSubmit=${submit}>
      <h1>Sign in</h1>
      ${why && html`<p>${why}</p>`}
      <label>Account
        <input ref=${first} name="user" autocomplete="username" required defaultValue=${user} autocapitalize="none" />
      </label>
      <label>Password
        <input ref=${password} name="password" type="password" autocomplete="current-password" required autofocus=${Boolean(user)} />
      </label>
      <div role="alert">${error && html`<p class="warning">${error}</p>`}</div>
      <button class="main" disabled=${busy}>Sign in</button>
    </form>`;
}
